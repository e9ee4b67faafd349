# Simulated machines: each has its own network, mount table, host name, cgroups and containerd. A bridge in a network
# namespace without a route to the outside connects them.
set -e
command=$1 directory=$2 outer=$3

groups() {
    if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
        echo /sys/fs/cgroup
    else
        for controller in cpu cpuacct cpuset memory devices freezer blkio pids systemd; do
            echo /sys/fs/cgroup/$controller
        done
    fi
}

# Moves this shell into the machine's cgroups.
enter_groups() {
    for root in $(groups); do
        mkdir -p "$root/$outer-$1"
        if [ -f "$root/cpuset.mems" ]; then
            cat "$root/cpuset.cpus" >"$root/$outer-$1/cpuset.cpus"
            cat "$root/cpuset.mems" >"$root/$outer-$1/cpuset.mems"
        fi
        # In cgroup v2, a group that delegates controllers must not contain processes.
        leaf="$root/$outer-$1"
        if [ -d "$leaf/host" ]; then leaf="$leaf/host"; fi
        echo $$ >"$leaf/cgroup.procs"
    done
}

# Kills all processes of a machine, as a power loss does, and deletes its network and cgroups.
clear() {
    for _ in $(seq 50); do
        left=$(for root in $(groups); do
            find "$root/$outer-$1" -name cgroup.procs -exec cat {} + 2>/dev/null
        done | sort -u)
        if [ -z "$left" ]; then break; fi
        kill -9 $left 2>/dev/null
        sleep 0.05
    done
    ip netns delete "$outer-$1"
    # The kernel deletes the interface with the network namespace, but asynchronously.
    ip -n "$outer" link delete "$1" 2>/dev/null
    for root in $(groups); do
        find "$root/$outer-$1" -depth -type d -exec rmdir {} \; 2>/dev/null
    done
}

case $command in
create)
    mkdir -p "$directory"
    ip netns add "$outer"
    ip -n "$outer" link set lo up
    ip -n "$outer" link add br0 type bridge
    ip -n "$outer" address add 192.0.2.254/24 dev br0
    ip -n "$outer" link set br0 up
    ;;
start)
    name=$4 address=$5 inside="$outer-$4"
    mkdir -p "$directory/$name/kubelet"
    rm -f "$directory/$name/pid"
    # Use a tmpfs: otherwise a full disk of the outer machine puts the node under disk pressure.
    if ! mountpoint -q "$directory/$name/kubelet"; then
        mount -t tmpfs -o mode=755,size=1g tmpfs "$directory/$name/kubelet"
    fi
    ip netns add "$inside"
    ip -n "$outer" link add "$name" type veth peer name eth0 netns "$inside"
    ip -n "$outer" link set "$name" master br0 up
    ip -n "$inside" link set lo up
    ip -n "$inside" address add "$address/24" dev eth0
    ip -n "$inside" link set eth0 up
    ip -n "$inside" route add default via 192.0.2.254
    enter_groups "$name"
    # The pid file is written once the machine is set up.
    setsid unshare --cgroup --mount --uts --propagation private nsenter --net="/run/netns/$inside" \
        sh "$directory/machines.sh" inside "$directory" "$outer" "$name" "$address" \
        >"$directory/$name/start.log" 2>&1 </dev/null &
    for _ in $(seq 100); do
        if [ -s "$directory/$name/pid" ]; then exit 0; fi
        sleep 0.1
    done
    cat "$directory/$name/start.log" >&2
    exit 1
    ;;
inside)
    name=$4 address=$5 own="$directory/$4"
    hostname "$name"
    mkdir -p /var/lib/kubelet
    mount --bind "$own/kubelet" /var/lib/kubelet
    mount --make-shared /var/lib/kubelet
    for path in etc/kubernetes etc/cni opt/cni var/lib/etcd var/lib/cni var/lib/windlass \
        var/lib/containerd var/log/pods var/log/containers var/log/windlass; do
        # Create the mount point if the outer machine does not have it.
        mkdir -p "$own/root/$path" "/$path"
        mount --bind "$own/root/$path" "/$path"
        mount --make-shared "/$path"
    done
    sed "\$a$address $name" /etc/hosts >"$own/hosts"
    mount --bind "$own/hosts" /etc/hosts
    # No DNS server answers at this address.
    echo 'nameserver 192.0.2.254' >"$own/resolv.conf"
    mount --bind "$own/resolv.conf" /etc/resolv.conf
    mount -t tmpfs -o mode=755 tmpfs /run
    mount --make-shared /run
    mkdir -p /run/netns /run/lock
    if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
        umount -R /sys/fs/cgroup
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        mkdir /sys/fs/cgroup/host
        echo $$ >/sys/fs/cgroup/host/cgroup.procs
    else
        controllers=$(cd /sys/fs/cgroup && ls -d cpu cpuacct cpuset memory devices freezer blkio pids)
        umount -R /sys/fs/cgroup
        mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
        for controller in $controllers; do
            mkdir "/sys/fs/cgroup/$controller"
            mount -t cgroup -o "$controller" "$controller" "/sys/fs/cgroup/$controller"
        done
        mkdir /sys/fs/cgroup/systemd
        mount -t cgroup -o none,name=systemd systemd /sys/fs/cgroup/systemd
    fi
    echo 1 >/proc/sys/net/ipv4/ip_forward
    restrict=true
    case $(sed -n 's/^CapEff:.*\([0-9a-f]\)[0-9a-f]\{6\}$/\1/p' /proc/self/status) in
    # The process has CAP_SYS_RESOURCE, which a negative oom_score_adj needs.
    [13579bdf]) restrict=false ;;
    esac
    cat >"$own/containerd.toml" <<END
version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = $restrict
END
    # Restart containerd when it exits, as a service manager does.
    while :; do
        containerd --config "$own/containerd.toml" >>"$own/containerd.log" 2>&1 || true
        sleep 0.2
    done &
    for _ in $(seq 100); do
        if ctr version >/dev/null 2>&1; then break; fi
        sleep 0.1
    done
    echo $$ >"$own/pid"
    exec sleep infinity
    ;;
run)
    name=$4
    shift 4
    enter_groups "$name"
    exec nsenter --target "$(cat "$directory/$name/pid")" --mount --uts --net --cgroup --wdns=/ -- "$@"
    ;;
crash)
    set +e
    clear "$4"
    exit 0
    ;;
stop)
    set +e
    clear "$4"
    umount "$directory/${4:?}/kubelet"
    rm -rf "$directory/${4:?}"
    exit 0
    ;;
cut)
    # Processes keep running without a network.
    ip -n "$outer" link set "$4" down
    ;;
heal)
    ip -n "$outer" link set "$4" up
    ;;
remove)
    # Wait until standard input is closed, which the kernel does even if the tests are killed.
    trap '' INT TERM HUP
    read -r _ || true
    set +e
    for own in "$directory"/*/; do
        clear "$(basename "$own")"
        umount "$own/kubelet"
    done
    ip netns delete "$outer"
    rm -rf "$directory"
    ;;
esac
