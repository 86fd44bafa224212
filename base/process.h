/*
 * process.h - how each program begins, whatever it inherits: descriptors 0 to 2 that are closed, signals that are
 * ignored or blocked.
 */
#ifndef MR_BASE_PROCESS_H
#define MR_BASE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * First in main(). Occupies descriptors 0 to 2 where they are closed, so that no segment or socket gets their numbers;
 * they still cannot be read or written. Unblocks all signals and gives those of `changed` in process.c the disposition
 * that our programs rely on: with SIGCHLD ignored, as some launchers leave it, the kernel reaps children and their exit
 * status is lost. SIGHUP, SIGINT and SIGQUIT stay as they are (nohup, a shell's background jobs).
 */
void mr_process_begin(void);
/* From now on the handler is called, with these flags of sigaction. False: the signal was ignored when the process
 * began (nohup), and stays so. */
bool mr_process_catch(int number, void (*handler)(int number), int flags);
/* Those end, stop or continue the process again, as they do by themselves. Async-signal-safe. */
void mr_process_uncatch(void);
/* For a SIGTSTP (Ctrl-Z) that was caught or read while blocked: stops as it does by itself, and returns when continued;
 * at once where nobody could continue us (an orphaned process group). */
void mr_process_stop(void);
/* What was printed reaches standard output. 0, or -1 with mr_error. */
int mr_process_flush(void);
/* Whether even the few descriptors that a look-up needs cannot be had: then sets mr_error, which says so. For failures
 * that a library or the kernel does not explain. */
bool mr_process_lacks_descriptors(void);
/* In a forked child, before exec of a program that is not ours: signals as they were before mr_process_begin
 * and mr_process_catch.
 * Async-signal-safe. */
void mr_process_restore_signals(void);
/* A number of the program in this process, of where the kernel has put it: the same for its whole life, whatever is
 * loaded into it, and after a fork; another one after an exec, but where addresses are not random. Never 0. */
uint64_t mr_process_image(void);
/* For the message about a fork that failed: which limit it met, or "". */
const char *mr_process_limit(int errnum);

#endif
