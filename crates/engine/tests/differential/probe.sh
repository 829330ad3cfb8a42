# Prints what a process of a container sees, in sections. The argument names the file in /out.
exec > /out/$1.part 2>&1
section() { echo "== $1"; }
section status
grep -E '^(Umask|Uid|Gid|Groups|SigBlk|SigIgn|SigCgt|SigPnd|ShdPnd|Cap...|NoNewPrivs|Seccomp|Cpus_allowed_list|Mems_allowed_list):' /proc/self/status
section limits
cat /proc/self/limits
section mountinfo
cut -d' ' -f4- /proc/self/mountinfo
section cgroup
cat /proc/self/cgroup
section maps
cat /proc/self/uid_map /proc/self/gid_map
section fds
ls /proc/$$/fd
section streams
stat -L -c '%F %u %g %a' /proc/$$/fd/0
section session
awk '{ print ($1 == $5), ($5 == $6), $7, $19 }' /proc/$$/stat
section environment
env | sort
pwd
section oom_score_adj
cat /proc/self/oom_score_adj
section personality
cat /proc/self/personality
section names
hostname
id
ls /sys/class/net | grep -x lo
[ $(ls /sys/class/net | wc -l) -eq 1 ] || echo other interfaces
cat /proc/sys/net/ipv4/ip_unprivileged_port_start
ls /
section namespaces
for name in cgroup ipc mnt net pid user uts; do echo $name $(readlink /proc/self/ns/$name); done
section dev
for file in /dev/* /dev/pts/ptmx; do echo "$file $(stat -c '%F %a %u %g %t:%T' $file) $(readlink $file)"; done
section masked
for file in /proc/kcore /proc/keys /proc/timer_list /sys/firmware; do echo "$file $(stat -c '%F %t:%T' $file) $(ls $file | wc -l)"; done
section verdicts
# A system call each: allowed, refused by capabilities, or refused by the filter with its error.
try() { echo "$*: $("$@" 2>&1 </dev/null | head -n 1)"; }
mkdir -p /tmp/made
try mount -t tmpfs none /tmp/made
try umount /tmp/made
try unshare -m true
try unshare -U true
try chroot / true
try mknod /tmp/node c 1 3
try mknod /tmp/disk b 8 0
try chown 5:5 /tmp/made
try chmod 700 /tmp/made
try mkdir /tmp/other
try rmdir /tmp/other
try ln -s x /tmp/link
try hostname other
try date -s 2000-01-01
try adjtimex -f 1
try swapon /tmp/none
try dmesg -n 1
try insmod /tmp/none
try nice -n -5 true
try renice -n -5 -p 1
try ionice -c 1 true
try taskset 1 true
try kill -0 1
try nsenter -t 1 -m true
try pivot_root /tmp /tmp
try sysctl -w kernel.domainname=x
try sysctl -w net.ipv4.ip_forward=0
try setpriv --nnp true
try head -c 1 /dev/zero
try head -c 1 /dev/mem
try ip link add dummy9 type dummy
try ping -c 1 -w 1 127.0.0.1
try fallocate -l 10 /tmp/file
try linux32 uname -m
echo > /out/$1
