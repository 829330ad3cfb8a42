/* The least that makes a container: namespaces, a root, /proc, one program. Prints nothing, undoes nothing. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char stack[65536];

static int container(void *root) {
    char *arguments[] = {"/bin/true", 0}, *environment[] = {"PATH=/bin", 0};
    if (mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) || mount(root, root, 0, MS_BIND | MS_REC, 0) || chdir(root)) return 1;
    if (syscall(SYS_pivot_root, ".", "old") || chdir("/") || umount2("/old", MNT_DETACH)) return 2;
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NOEXEC | MS_NODEV, 0)) return 3;
    execve(arguments[0], arguments, environment);
    return 4;
}

int main(int count, char **arguments) {
    int status, flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET;
    if (count < 2) return 5;
    pid_t child = clone(container, stack + sizeof stack, flags | SIGCHLD, arguments[1]);
    if (child < 0 || waitpid(child, &status, 0) < 0) return 6;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 7;
}
