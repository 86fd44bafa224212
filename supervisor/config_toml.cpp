#include "supervisor/config_toml.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <toml++/toml.h>

extern "C" {
#include "shm/base/error.h"
}

#define TEXT_MAX (std::size_t{1} << 20)

namespace
{

/* "file: line n: text" as the thread's error; thrown nowhere: callers return false. */
bool complain(const toml::node &node, const std::string &file, const std::string &text)
{
    mr_error_set(MR_E_CONFIG, "%s: line %u: %s", file.c_str(), node.source().begin.line, text.c_str());
    return false;
}

/* The same with what a mr_config_set_* call has said. */
bool complain_of_value(const toml::node &node, const std::string &file)
{
    if (mr_error_code() != MR_E_CONFIG)
        return false;
    return complain(node, file, std::string(mr_error_text()));
}

bool wrong_type(const toml::node &node, const std::string &file, const mr_config_key *key)
{
    switch (key->type) {
    case MR_KEY_U64:
        return complain(node, file, std::string("'") + key->name + "' must be a whole number");
    case MR_KEY_BYTES:
        return complain(node, file,
                        std::string("'") + key->name + "' must be a number of bytes or text like \"512MiB\"");
    case MR_KEY_BOOL:
        return complain(node, file, std::string("'") + key->name + "' must be true or false");
    case MR_KEY_LINES:
        return complain(node, file,
                        std::string("'") + key->name + "' must be a table of strings: { name = \"value\" }");
    case MR_KEY_STRINGS:
        return complain(node, file, std::string("'") + key->name + "' must be a string or an array of strings");
    default:
        return complain(node, file, std::string("'") + key->name + "' must be a string");
    }
}

bool set_text(const toml::node &node, const std::string &file, const mr_config_key *key, void *base,
              const std::string &text)
{
    if (text.find('\0') != std::string::npos)
        return complain(node, file, std::string("'") + key->name + "' holds a NUL character");
    return mr_config_set_text(key, base, text.c_str()) == 0 || complain_of_value(node, file);
}

bool set_number(const toml::node &node, const std::string &file, const mr_config_key *key, void *base, int64_t value)
{
    if (value < 0)
        return complain(node, file, std::string("'") + key->name + "' must not be negative");
    return mr_config_set_u64(key, base, static_cast<uint64_t>(value)) == 0 || complain_of_value(node, file);
}

bool set_strings(const toml::node &node, const std::string &file, const mr_config_key *key, void *base)
{
    const toml::array *array = node.as_array();
    if (array == nullptr)
        return wrong_type(node, file, key);
    for (const toml::node &item : *array) {
        const auto text = item.value_exact<std::string>();
        if (!text)
            return wrong_type(item, file, key);
        if (!set_text(item, file, key, base, *text))
            return false;
    }
    return true;
}

bool set_lines(const toml::node &node, const std::string &file, const mr_config_key *key, void *base)
{
    const toml::table *table = node.as_table();
    if (table == nullptr)
        return wrong_type(node, file, key);
    for (const auto &[name, item] : *table) {
        const auto text = item.value_exact<std::string>();
        if (!text)
            return wrong_type(item, file, key);
        if (!set_text(item, file, key, base, std::string(name.str()) + ": " + *text))
            return false;
    }
    return true;
}

bool set_value(const toml::node &node, const std::string &file, const mr_config_key *key, void *base)
{
    const auto text = node.value_exact<std::string>();
    const auto number = node.value_exact<int64_t>();
    switch (key->type) {
    case MR_KEY_U64:
        return number ? set_number(node, file, key, base, *number) : wrong_type(node, file, key);
    case MR_KEY_BYTES:
        if (number)
            return set_number(node, file, key, base, *number);
        break;
    case MR_KEY_BOOL: {
        const auto flag = node.value_exact<bool>();
        if (!flag)
            return wrong_type(node, file, key);
        return mr_config_set_bool(key, base, *flag) == 0 || complain_of_value(node, file);
    }
    case MR_KEY_LINES:
        return set_lines(node, file, key, base);
    case MR_KEY_STRINGS:
        if (!text)
            return set_strings(node, file, key, base);
        break;
    case MR_KEY_CHOICE:
    case MR_KEY_STRING:
        break;
    }
    return text ? set_text(node, file, key, base, *text) : wrong_type(node, file, key);
}

std::string did_you_mean(const char *nearest)
{
    return nearest != nullptr ? std::string("; did you mean '") + nearest + "'?" : std::string();
}

/* The line of a key, not of its value: they may be apart. */
bool complain_of_key(const toml::key &key, const std::string &file, const std::string &text)
{
    mr_error_set(MR_E_CONFIG, "%s: line %u: %s", file.c_str(), key.source().begin.line, text.c_str());
    return false;
}

bool take_section(const toml::table &table, const std::string &file, const char *section, const std::string &title,
                  void *base)
{
    for (const auto &[name, node] : table) {
        const std::string key_name(name.str());
        const mr_config_key *key = mr_config_key_find(section, key_name.c_str());
        if (key == nullptr)
            return complain_of_key(name, file,
                                   "unknown key '" + key_name.substr(0, 60) + "' in [" + title + "]" +
                                       did_you_mean(mr_config_nearest(section, key_name.c_str())));
        if (!set_value(node, file, key, base))
            return false;
    }
    return true;
}

bool take_datasets(const toml::node &node, const std::string &file, mr_config *config)
{
    const toml::table *datasets = node.as_table();
    if (datasets == nullptr)
        return complain(node, file, "data sets are written as [dataset.NAME]");
    for (const auto &[name, item] : *datasets) {
        const std::string text(name.str());
        const toml::table *table = item.as_table();
        if (table == nullptr)
            return complain_of_key(name, file,
                                   "data sets are written as [dataset.NAME], and '" + text.substr(0, 60) +
                                       "' stands in [dataset]");
        if (table->contains("uri") && table->contains("uris"))
            return complain(item, file, "[dataset." + text + "] has both uri and uris");
        mr_config_dataset *dataset = mr_config_add_dataset(config, text.c_str());
        if (dataset == nullptr)
            return complain_of_value(item, file);
        if (!take_section(*table, file, "dataset", "dataset." + text, dataset))
            return false;
        if (dataset->uris.count == 0)
            return complain(item, file, "[dataset." + text + "] has neither uri nor uris");
    }
    return true;
}

bool is_section(const std::string &name)
{
    unsigned count;
    const mr_config_key *keys = mr_config_keys(&count);
    for (unsigned i = 0; i < count; i++)
        if (name == keys[i].section)
            return true;
    return false;
}

bool take_root(const toml::table &root, const std::string &file, mr_config *config)
{
    for (const auto &[name, node] : root) {
        const std::string section(name.str());
        if (section == "dataset") {
            if (!take_datasets(node, file, config))
                return false;
            continue;
        }
        if (!is_section(section))
            return complain_of_key(name, file,
                                   std::string(node.is_table() ? "unknown section [" : "unknown key '") +
                                       section.substr(0, 60) + (node.is_table() ? "]" : "'") +
                                       did_you_mean(mr_config_nearest(nullptr, section.c_str())));
        const toml::table *table = node.as_table();
        if (table == nullptr)
            return complain(node, file, "'" + section + "' is a section: write [" + section + "]");
        if (!take_section(*table, file, section.c_str(), section, config))
            return false;
    }
    return true;
}

/* Exceptions end here: C calls us. */
bool parse(mr_config *config, std::string_view text, const std::string &file)
{
    try {
        const toml::table root = toml::parse(text);
        if (!take_root(root, file, config))
            return false;
    } catch (const toml::parse_error &error) {
        mr_error_set(MR_E_CONFIG, "%s: line %u: %.*s", file.c_str(), error.source().begin.line,
                     static_cast<int>(error.description().size()), error.description().data());
        return false;
    } catch (const std::exception &error) {
        mr_error_set(MR_E_CONFIG, "%s: %s", file.c_str(), error.what());
        return false;
    }
    if (mr_config_check(config) == 0)
        return true;
    mr_error_append("%s", file.c_str());
    return false;
}

} // namespace

extern "C" int mr_config_parse(mr_config *config, const char *text, size_t length, const char *name)
{
    if (mr_config_init(config) != 0)
        return -1;
    if (parse(config, std::string_view(text, length), name))
        return 0;
    mr_config_close(config);
    return -1;
}

/* The whole file; false with errno. A configuration has some kilobytes: what never ends is refused. */
static bool read_file(const char *path, std::string &text)
{
    char part[4096];
    std::FILE *file = std::fopen(path, "rbe");
    if (file == nullptr)
        return false;
    std::size_t n;
    errno = 0;
    while (text.size() < TEXT_MAX && (n = std::fread(part, 1, sizeof part, file)) > 0)
        text.append(part, n);
    int failure = text.size() >= TEXT_MAX ? EFBIG : std::ferror(file) ? errno : 0;
    std::fclose(file);
    errno = failure;
    return failure == 0;
}

extern "C" int mr_config_load(mr_config *config, const char *path)
{
    if (path == nullptr)
        return mr_config_init(config);
    std::memset(config, 0, sizeof *config);
    std::string text;
    if (!read_file(path, text)) {
        mr_error_set(MR_E_CONFIG, "cannot read the configuration %s: %s", path, std::strerror(errno));
        return -1;
    }
    return mr_config_parse(config, text.data(), text.size(), path);
}
