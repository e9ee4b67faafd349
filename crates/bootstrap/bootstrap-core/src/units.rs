//! systemd units: the kubelet as in kubeadm's packages, and the renewal of certificates.

/// The first line of every unit that bootstrapping writes, by which `reset` recognises them.
pub const MARK: &str = "# Written by windlass; windlass reset removes it.";

/// A unit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The path.
    pub path: &'static str,
    /// The content.
    pub text: String,
}

const KUBELET: &str = "/etc/systemd/system/kubelet.service";
const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf";
const RENEWAL: &str = "/etc/systemd/system/windlass-certs.service";
const TIMER: &str = "/etc/systemd/system/windlass-certs.timer";

/// Every unit that may be written, for removal.
pub const PATHS: [&str; 4] = [DROP_IN, KUBELET, RENEWAL, TIMER];

/// Returns the kubelet's service and its drop-in. `program` is this binary.
pub fn kubelet(program: &str) -> [Unit; 2] {
    let service = format!(
        "{MARK}
[Unit]
Description=kubelet: The Kubernetes Node Agent
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={program} kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
"
    );
    let drop_in = format!(
        "{MARK}
[Service]
Environment=\"KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf\"
Environment=\"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml\"
# init and join write KUBELET_KUBEADM_ARGS into this file.
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
# KUBELET_EXTRA_ARGS in this file is the administrator's last resort; kubeletExtraArgs is the better place.
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart={program} kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"
    );
    [Unit { path: KUBELET, text: service }, Unit { path: DROP_IN, text: drop_in }]
}

/// Returns the service and timer that renew a control plane's certificates, twice a day and once after downtime.
pub fn renewal(program: &str) -> [Unit; 2] {
    let service = format!(
        "{MARK}
[Unit]
Description=Renewal of the control plane's certificates before their time

[Service]
Type=oneshot
ExecStart={program} certs renew due
"
    );
    let timer = format!(
        "{MARK}
[Unit]
Description=Renewal of the control plane's certificates before their time

[Timer]
OnCalendar=*-*-* 00/12:00:00
RandomizedDelaySec=1h
Persistent=true

[Install]
WantedBy=timers.target
"
    );
    [Unit { path: RENEWAL, text: service }, Unit { path: TIMER, text: timer }]
}
