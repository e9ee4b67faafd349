#!/bin/sh
# Installs windlass from the directory of this script, or removes it.
#
#   install.sh [--prefix DIR]            the binary and its manual pages, into DIR/bin and DIR/share/man [/usr/local]
#   install.sh --service [UP'S FLAGS]    also a systemd service that starts `windlass up` at boot
#   install.sh --remove [--prefix DIR]   the binary, its pages and the service; clusters and their data stay
set -eu

here=$(cd "$(dirname "$0")" && pwd)
prefix=/usr/local
action=install
unit=/etc/systemd/system/windlass.service
flags=
cluster=
service=

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
    --prefix)
        [ $# -ge 2 ] || fail "--prefix wants a directory"
        prefix=$2
        shift
        ;;
    --remove) action=remove ;;
    --service)
        service=yes
        shift
        flags=$*
        # `down` ends the cluster that the flags of `up` name.
        while [ $# -gt 0 ]; do
            case $1 in
            --name | --root) cluster="$cluster $1 ${2-}" ;;
            --name=* | --root=*) cluster="$cluster $1" ;;
            esac
            shift
        done
        break
        ;;
    *) fail "unknown argument $1; use [--prefix DIR] [--remove | --service FLAGS...]" ;;
    esac
    shift
done
binary=$prefix/bin/windlass
manual=$prefix/share/man/man1

# The next version may have other commands.
remove_manual() {
    rm -f "$manual"/windlass.1 "$manual"/windlass-*.1
}

if [ $action = remove ]; then
    if [ -e $unit ]; then
        systemctl disable --now windlass.service
        rm -f $unit
        systemctl daemon-reload
    fi
    rm -f "$binary"
    remove_manual
    echo "removed $binary; \`windlass down\` would have removed a cluster's data in /var/lib/windlass"
    exit 0
fi

if [ -n "$service" ] && [ ! -d /run/systemd/system ]; then
    fail "--service needs systemd, which does not run here; run \`windlass up\` instead"
fi
[ -r "$here/SHA256SUMS" ] || fail "SHA256SUMS is missing beside this script; download the whole release"
# A name may stand in the list once: two lines could name two different files.
line=$(grep -E '^[0-9a-f]{64}  windlass$' "$here/SHA256SUMS") || fail "SHA256SUMS does not name windlass"
(cd "$here" && echo "$line" | sha256sum --check --status) ||
    fail "windlass does not match its checksum in SHA256SUMS; download it again"

mkdir -p "$prefix/bin" && [ -w "$prefix/bin" ] ||
    fail "$prefix/bin is not writable; run this as root, or choose another --prefix"
# The name appears with the whole file, also while the old binary runs.
install -m 755 "$here/windlass" "$binary.new"
mv -f "$binary.new" "$binary"
remove_manual
"$binary" internal man-pages "$manual" >/dev/null || echo "install.sh: there are no manual pages in $manual" >&2
echo "installed $("$binary" version -o short) as $binary"

if [ -n "$service" ]; then
    cat >$unit <<UNIT
[Unit]
Description=A Kubernetes cluster of this machine (windlass up)
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=$binary up $flags
ExecStop=$binary down --keep-data$cluster
Delegate=yes
TimeoutStartSec=10min

[Install]
WantedBy=multi-user.target
UNIT
    systemctl daemon-reload
    systemctl enable --now windlass.service
    echo "started windlass.service"
else
    echo "next: $binary up"
fi
