/* tool.h - the commands of `millrace` that need the network: it becomes millrace-worker with the same arguments. */
#ifndef MR_WORKER_TOOL_H
#define MR_WORKER_TOOL_H

/* `ls [-l] [-r] URI`; argv[0] is "ls". Returns the exit status. */
int mr_tool_ls(int argc, char **argv);
/* `cat URI [--range A-B]`: bytes A to B inclusive, as in HTTP. */
int mr_tool_cat(int argc, char **argv);

#endif
