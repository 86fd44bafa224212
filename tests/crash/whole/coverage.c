/* coverage.c - see coverage.h. Names of static functions too, so from the library's symbol table. */
#include "tests/crash/whole/coverage.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/crash/whole/tracee.h"

static uint32_t *stops; /* by offset into the code */

struct function {
    const char *name;
    uint64_t address;
    uint32_t tried, places;
};

void coverage_open(void)
{
    stops = mmap(NULL, tracee_code_size() * sizeof *stops, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (stops == MAP_FAILED)
        fail("no memory for the counters");
}

void coverage_count(uint64_t offset)
{
    stops[offset]++;
}

static int by_address(const void *a, const void *b)
{
    const struct function *x = a, *y = b;

    return (x->address > y->address) - (x->address < y->address);
}

/* Counts what lies in the symbol; base is where the library is loaded. */
static bool measure(const Elf64_Sym *symbol, const char *names, uint64_t base, struct function *function)
{
    *function = (struct function){.name = names + symbol->st_name, .address = symbol->st_value};
    if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || symbol->st_size == 0)
        return false;
    for (uint64_t i = 0; i < symbol->st_size; i++) {
        uint64_t offset = tracee_code_offset(base + symbol->st_value + i);
        if (offset >= tracee_code_size() || !stops[offset])
            continue;
        function->tried += stops[offset];
        function->places++;
    }
    return function->tried > 0;
}

static void print_functions(const unsigned char *file, uint64_t base)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)file;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(file + header->e_shoff);

    for (unsigned i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *section = &sections[i];
        const Elf64_Sym *symbols = (const Elf64_Sym *)(file + section->sh_offset);
        uint64_t count = section->sh_type == SHT_SYMTAB ? section->sh_size / sizeof *symbols : 0;
        struct function *functions = calloc(count + 1, sizeof *functions);
        unsigned found = 0;
        if (!functions)
            return;
        for (uint64_t k = 0; k < count; k++)
            found += measure(&symbols[k], (const char *)file + sections[section->sh_link].sh_offset, base,
                             &functions[found]);
        qsort(functions, found, sizeof *functions, by_address);
        for (unsigned k = 0; k < found; k++)
            printf("%-32s %9u %9u\n", functions[k].name, functions[k].tried, functions[k].places);
        free(functions);
    }
}

void coverage_print(void)
{
    void *file = MAP_FAILED;
    Dl_info info;
    int fd = -1;

    if (dladdr((void *)mr_lane_post, &info))
        fd = open(info.dli_fname, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    if (fd >= 0 && fstat(fd, &stat) == 0)
        file = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file == MAP_FAILED) {
        printf("the library's symbols cannot be read\n");
    } else {
        printf("\n%-32s %9s %9s\n", "function", "tried", "addresses");
        print_functions(file, (uint64_t)(uintptr_t)info.dli_fbase);
        munmap(file, (size_t)stat.st_size);
    }
    if (fd >= 0)
        close(fd);
}
