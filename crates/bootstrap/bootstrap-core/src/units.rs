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

/// The kubelet's service and drop-in as packages contain them.
const PACKAGED: [(&str, &str); 2] = [
    (KUBELET, include_str!("../units/kubelet.service")),
    (DROP_IN, include_str!("../units/10-kubeadm.conf")),
];

/// Returns the kubelet's service and its drop-in. `program` is this binary.
pub fn kubelet(program: &str) -> [Unit; 2] {
    let kubelet = format!("ExecStart={program} kubelet");
    PACKAGED.map(|(path, text)| {
        let text = text.replace("ExecStart=/usr/bin/kubelet", &kubelet);
        Unit { path, text: format!("{MARK}\n{text}") }
    })
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
