/* The first process of a pod: holds its namespaces, reaps orphans when the pod shares one process namespace, ends on TERM. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, 0, WNOHANG) > 0) {}
}

static void end(int signal) {
    (void)signal;
    _exit(0);
}

int main(void) {
    struct sigaction action = {0};
    action.sa_handler = reap;
    sigaction(SIGCHLD, &action, 0);
    action.sa_handler = end;
    sigaction(SIGTERM, &action, 0);
    sigaction(SIGINT, &action, 0);
    for (;;) pause();
}
