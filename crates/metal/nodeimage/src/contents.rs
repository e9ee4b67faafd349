//! The files that the image adds to Debian's.

use crate::cpio::{Content, Entries, Entry};

/// The groups in udev's rules.
pub(crate) const GROUPS: &str = "root:x:0:\ntty:x:5:\ndisk:x:6:\nlp:x:7:\nkmem:x:15:\ndialout:x:20:\ncdrom:x:24:\n\
    tape:x:26:\naudio:x:29:\nvideo:x:44:\nsgx:x:106:\ninput:x:104:\nkvm:x:105:\nrender:x:107:\n";

/// The kubelet as in kubeadm's packages. The drop-in reads the files that `init` and `join` write.
const KUBELET_SERVICE: &str = "\
[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target containerd.service
After=network-online.target containerd.service windlass-images.service

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
";

const KUBELET_DROP_IN: &str = "\
[Service]
Environment=\"KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf\"
Environment=\"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml\"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
";

const KUBELET_PATH: &str = "\
[Unit]
Description=Starts the kubelet when it has been told of a cluster

[Path]
PathExists=/etc/kubernetes/kubelet.conf
PathExists=/etc/kubernetes/bootstrap-kubelet.conf

[Install]
WantedBy=multi-user.target
";

/// The unit that builds our images from the binary, because no registry has them. containerd does not sync unpacked
/// files and never unpacks them again. Without `sync`, a power loss within half a minute left empty programs in
/// containers.
const IMAGES_SERVICE: &str = "\
[Unit]
Description=Gives containerd the images that came with the system
Requires=containerd.service
After=containerd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/windlass images build
ExecStart=/bin/sh -ec 'for archive in /usr/lib/windlass/images/*.tar; do [ ! -e $$archive ] || ctr --namespace k8s.io images import $$archive; done'
ExecStart=/bin/sync --file-system /var/lib/containerd

[Install]
WantedBy=multi-user.target
";

const HOST_KEYS_SERVICE: &str = "\
[Unit]
Description=Makes the SSH host key of this machine
ConditionPathExists=!/etc/ssh/ssh_host_ed25519_key
Before=ssh.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key

[Install]
WantedBy=multi-user.target
";

/// Disables services that packages bring. The config's `20-ignition.preset` takes precedence, because the first
/// matching line wins.
const PRESET: &str = "\
enable kubelet.path
disable kubelet.service
enable containerd.service
enable windlass-images.service
enable windlass-ssh-keys.service
enable ssh.service
disable ssh.socket
enable systemd-networkd.service
enable systemd-networkd-wait-online.service
enable systemd-resolved.service
enable systemd-timesyncd.service
enable getty@.service
enable clevis-luks-askpass.path
enable remote-cryptsetup.target
enable remote-fs.target
disable nftables.service
disable conntrackd.service
disable mdmonitor*
disable mdcheck*
disable e2scrub*
disable xfs_scrub*
disable apt-daily*
disable dpkg-db-backup*
disable fstrim.timer
disable *
";

/// Bridges and the links of Pods are excluded.
const NETWORK: &str = "\
[Match]
Type=ether
Kind=!*

[Network]
DHCP=yes

[DHCPv4]
ClientIdentifier=mac
";

const CONTAINERD: &str = "\
version = 2
[plugins.\"io.containerd.grpc.v1.cri\"]
  sandbox_image = \"windlass.local/pause:3.10.2\"
  [plugins.\"io.containerd.grpc.v1.cri\".cni]
    bin_dir = \"/opt/cni/bin\"
    conf_dir = \"/etc/cni/net.d\"
  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]
    runtime_type = \"io.containerd.runc.v2\"
    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]
      SystemdCgroup = true
";

const TEXTS: &[(&str, &str)] = &[
    ("usr/lib/systemd/system/kubelet.service", KUBELET_SERVICE),
    ("usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", KUBELET_DROP_IN),
    ("usr/lib/systemd/system/kubelet.path", KUBELET_PATH),
    ("usr/lib/systemd/system/windlass-images.service", IMAGES_SERVICE),
    ("usr/lib/systemd/system/windlass-ssh-keys.service", HOST_KEYS_SERVICE),
    ("usr/lib/systemd/system-preset/80-windlass.preset", PRESET),
    ("usr/lib/systemd/network/80-windlass.network", NETWORK),
    ("etc/containerd/config.toml", CONTAINERD),
    // containerd copies this file into every Pod and requires it.
    ("etc/hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"),
    (
        "etc/ssh/sshd_config.d/ignition.conf",
        "AuthorizedKeysFile .ssh/authorized_keys .ssh/authorized_keys.d/ignition\n",
    ),
    (
        "usr/lib/sysctl.d/90-windlass.conf",
        "net.ipv4.ip_forward = 1\nnet.ipv6.conf.all.forwarding = 1\nvm.overcommit_memory = 1\nkernel.panic = 10\n",
    ),
    ("usr/lib/modules-load.d/windlass.conf", "overlay\nbr_netfilter\nnf_conntrack\n"),
    // Each machine generates its own identity at the first boot.
    ("etc/machine-id", "uninitialized\n"),
];

const LINKS: &[(&str, &str)] = &[
    ("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"),
    ("usr/bin/ignition", "windlass"),
    ("usr/bin/kubelet", "windlass"),
    ("opt/cni/bin/windlass-cni", "/usr/bin/windlass"),
    ("opt/cni/bin/loopback", "/usr/bin/windlass"),
];

/// Adds our files to Debian's.
pub(crate) fn add(entries: &mut Entries) {
    // Only presets decide which units start at the first boot.
    entries.retain(|name, entry| {
        let enabled = name.starts_with("etc/systemd/system/") && name.contains(".wants/");
        !(enabled && matches!(entry.content, Content::Link(_)))
    });
    entries.extend(TEXTS.iter().map(|(name, text)| ((*name).to_owned(), Entry::text(text))));
    entries.extend(LINKS.iter().map(|(name, target)| ((*name).to_owned(), Entry::link(target))));
    for place in [
        "boot",
        "dev",
        "proc",
        "run",
        "sys",
        "etc/kubernetes/manifests",
        "etc/cni/net.d",
        "var/log",
        "var/cache",
        "var/lib/systemd",
    ] {
        entries.entry(place.to_owned()).or_insert_with(Entry::directory);
    }
    for place in ["tmp", "var/tmp"] {
        entries.insert(place.to_owned(), Entry::new(0o1777, Content::Directory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_preset_precedes_ours_and_debians() {
        let file = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let ours = TEXTS.iter().find(|(_, text)| *text == PRESET).map(|(name, _)| file(name));
        let ours = ours.unwrap();
        let config = file(ignition::units::PRESET);
        assert!(config < ours && ours.as_str() < "90-systemd.preset", "{config} {ours}");
    }
}
