/* Belongs to root and has the set-user-ID bit: shows whether it has an effect. */
#include <stdio.h>
#include <unistd.h>

int main(void) {
    printf("Effective uid: %d\n", geteuid());
    return 0;
}
