#!/bin/sh
# Become the private engine: dockerd in a root file system of its own.
#
# Started by `make engine` as `unshare --mount --pid --fork start.sh ENGINE`, so it is process 1 of a new PID namespace:
# when it goes, by whatever cause, the kernel ends every container and every build step with it, and with the mount
# namespace go all mounts. A killed engine leaves nothing behind but files.
#
# ENGINE holds: root/ (Debian with docker.io), docker/ (images and caches), run/ (the socket).
set -eu
engine=$1
root=$engine/root

mount --bind "$root" "$root" # pivot_root wants a mount point
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/run/lockstep" "$root/var/lib/docker" "$root/.old"
mount --bind "$engine/run" "$root/run/lockstep"
mount --bind "$engine/docker" "$root/var/lib/docker"

# Everything after this line is the engine's own Debian; the caller's PATH may name folders that it does not have.
cd "$root"
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
pivot_root . .old
umount -l /.old

# In a container's own cgroup v2 namespace the top group is not the real root (only non-root groups have cgroup.type),
# and a group that holds processes cannot hand controllers to groups below it (cgroups(7), "no internal processes").
# So the processes move one level down first.
if [ -e /sys/fs/cgroup/cgroup.controllers ] && [ -e /sys/fs/cgroup/cgroup.type ]; then
    mkdir -p /sys/fs/cgroup/lockstep-init
    while read -r member; do
        echo "$member" >/sys/fs/cgroup/lockstep-init/cgroup.procs 2>/dev/null || :
    done </sys/fs/cgroup/cgroup.procs
    read -r controllers </sys/fs/cgroup/cgroup.controllers || : # empty where cgroup v1 has them all
    for controller in $controllers; do
        echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || :
    done
fi

# docker-init (tini) as process 1 passes signals on and reaps what containers orphan, which dockerd does not.
exec docker-init -- dockerd --host unix:///run/lockstep/docker.sock --pidfile /run/dockerd.pid
