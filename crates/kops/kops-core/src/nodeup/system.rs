//! The parts of the operating system that a machine of a cluster needs.

use api_meta::Tree as _;
use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::{
    context::{CA, Context, Distribution, SRV},
    task::{Content, File, HostRecord, Service, Task, Tasks},
    unit::Unit,
};
use crate::error::Error;

const CONFIG_OF_KUBECTL: &str = "/var/lib/kubectl/kubeconfig";
/// The largest file of a spec.
const MAX_FILE: usize = 1 << 20;
/// Decodes base64 with and without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Adds the cluster's authority and the credentials of registries.
pub(super) fn secrets(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    tasks.text(&format!("{SRV}/ca.crt"), context.authorities(CA), Some("0600"))?;
    match context.inputs.secrets.get("dockerconfig") {
        Some(text) => tasks.text("/root/.docker/config.json", text, Some("0600")),
        None => Ok(()),
    }
}

/// Adds kubectl and its credentials, also for the machine's administrator.
pub(super) fn kubectl(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    if !context.has_api_server {
        return Ok(());
    }
    let path = format!("{}/kubectl", context.user_programs());
    tasks.program(&path, context.asset("kubectl")?)?;
    let content = context.kubeconfig(tasks, "kubecfg", "kubecfg", &["system:masters"])?;
    context.kubeconfig_file(tasks, CONFIG_OF_KUBECTL, content.clone(), &[])?;
    let Some(admin) = context.admin().filter(|admin| !admin.home.is_empty()) else {
        return Ok(());
    };
    let owned = |path: String, mode: &str, content: Option<Content>| {
        Task::File(File {
            path,
            content,
            mode: Some(mode.to_owned()),
            owner: Some(admin.name.clone()),
            group: Some(admin.group.clone()),
            ..File::default()
        })
    };
    tasks.add(owned(format!("{}/.kube/", admin.home), "0700", None))?;
    tasks.add(owned(format!("{}/.kube/config", admin.home), "0400", Some(content)))
}

/// Adds updates of the distribution's packages, or turns them off.
pub(super) fn updates(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    if context.distribution == Distribution::Flatcar {
        return stop_flatcar_updates(context, tasks);
    }
    let text = if context.config.text("UpdatePolicy") == "external" {
        "APT::Periodic::Enable \"0\";\n"
    } else {
        tasks.add(Task::Package("unattended-upgrades".to_owned()))?;
        "APT::Periodic::Update-Package-Lists \"1\";\nAPT::Periodic::Unattended-Upgrade \"1\";\n\n\
         APT::Periodic::AutocleanInterval \"7\";\n"
    };
    tasks.text("/etc/apt/apt.conf.d/20auto-upgrades", text, None)
}

fn stop_flatcar_updates(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    const NAME: &str = "update-service.service";
    let lists = context.config.items("Hooks").iter().filter_map(|list| list.as_array());
    let mut names = lists.flatten().map(|hook| hook.text("name"));
    if names.any(|name| name == "update-service" || name == NAME) {
        return Ok(());
    }
    let unit = Unit::new(
        "Unit",
        &[("Description", "Disable OS Update Scheduler"), ("Before", "locksmithd.service")],
    )
    .with(
        "Service",
        &[("Type", "oneshot"), ("ExecStart", "/usr/bin/systemctl mask --now locksmithd.service")],
    );
    tasks.add(Task::Service(Service::running(NAME, Some(unit.render()))))
}

/// Adds the packages that the kubelet needs, and those of the spec.
pub(super) fn packages(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    if !context.distribution.has_packages() {
        return match context.config.texts("packages").next() {
            None => Ok(()),
            Some(name) => Err(Error::value("packages", name, "cannot be installed on Flatcar")),
        };
    }
    let proxy = context.config.at("KubeProxy");
    let nftables = proxy.text("proxyMode") == "nftables";
    let fixed = ["iptables", "libapparmor1", "libseccomp2", "util-linux"];
    let fixed = fixed.into_iter().chain(nftables.then_some("nftables"));
    for name in fixed.chain(context.config.texts("packages")) {
        let is_allowed =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
        let starts = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        if !starts || name.len() < 2 || !name.chars().all(is_allowed) {
            return Err(Error::value("packages", name, "is not the name of a package of Debian"));
        }
        tasks.add(Task::Package(name.to_owned()))?;
    }
    Ok(())
}

/// Adds the parameters of the kernel.
pub(super) fn parameters(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let ports = context.config.opt_text("ServiceNodePortRange").unwrap_or("30000-32767");
    let mut lines: Vec<String> =
        PARAMETERS.lines().map(|line| line.replace("{ports}", ports)).collect();
    if context.cloud() == "aws" {
        lines.extend(
            ["# AWS settings", "", "# Issue #23395", "net.ipv4.neigh.default.gc_thresh1=0", ""]
                .map(str::to_owned),
        );
    }
    let forwarding = if context.is_ipv6_only() {
        [
            "# Enable IPv6 forwarding for network plugins that don't do it themselves",
            "net.ipv6.conf.all.forwarding=1",
            "",
        ]
    } else {
        [
            "# Prevent docker from changing iptables: https://github.com/kubernetes/kubernetes/issues/40182",
            "net.ipv4.ip_forward=1",
            "",
        ]
    };
    lines.extend(forwarding.map(str::to_owned));
    if context.config.has("Networking.cilium") {
        lines.extend(CILIUM.lines().map(str::to_owned));
        lines.push(String::new());
    }
    lines.extend(context.config.texts("SysctlParameters").map(str::to_owned));
    tasks.add(Task::File(File {
        path: "/etc/sysctl.d/99-k8s-general.conf".to_owned(),
        content: Some(Content::Text(lines.join("\n"))),
        on_change: vec![vec!["sysctl".to_owned(), "--system".to_owned()]],
        ..File::default()
    }))
}

/// The parameters of every machine.
const PARAMETERS: &str = "# Kubernetes Settings

vm.max_map_count = 1048576

kernel.softlockup_panic = 1
kernel.softlockup_all_cpu_backtrace = 1

net.ipv4.ip_local_reserved_ports = {ports}

# Increase the number of connections
net.core.somaxconn = 32768

# Maximum Socket Receive Buffer
net.core.rmem_max = 16777216

# Maximum Socket Send Buffer
net.core.wmem_max = 16777216

# Increase the maximum total buffer-space allocatable
net.ipv4.tcp_wmem = 4096 87380 16777216
net.ipv4.tcp_rmem = 4096 87380 16777216

# Increase the number of outstanding syn requests allowed
net.ipv4.tcp_max_syn_backlog = 8096

# For persistent HTTP connections
net.ipv4.tcp_slow_start_after_idle = 0

# Allow to reuse TIME_WAIT sockets for new connections
# when it is safe from protocol viewpoint
net.ipv4.tcp_tw_reuse = 1

# Max number of packets that can be queued on interface input
# If kernel is receiving packets faster than can be processed
# this queue increases
net.core.netdev_max_backlog = 16384

# Increase size of file handles and inode cache
fs.file-max = 2097152

# Max number of inotify instances for a user
# Since dockerd runs as a single user, the default instances value of 128 per user is too low
# e.g. uses of inotify: nginx ingress controller, kubectl logs -f
fs.inotify.max_user_instances = 8192
# Additional sysctl flags that kubelet expects
vm.overcommit_memory = 1
kernel.panic = 10
kernel.panic_on_oops = 1

";

const CILIUM: &str = "# Depending on systemd version, cloud and distro, rp_filters may be enabled.
# Cilium requires this to be disabled. See https://github.com/cilium/cilium/issues/10645
net.ipv4.conf.all.rp_filter=0
net.ipv4.conf.lxc*.rp_filter=0
net.ipv4.conf.cilium_*.rp_filter=0";

/// Adds the files of the spec. The group's come first; the first of a path wins.
pub(super) fn file_assets(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let default = format!("{SRV}/assets");
    tasks.directory(&default, Some("0755"));
    let mut written = std::collections::BTreeSet::new();
    for asset in context.config.items("FileAssets") {
        let name = asset.text("name");
        let path = match asset.text("path") {
            "" => format!("{default}/{name}"),
            path => path.to_owned(),
        };
        check_path(&path)?;
        if !written.insert(path.clone()) {
            continue;
        }
        let mut content = asset.text("content").to_owned();
        if asset.flag("isBase64") {
            let wrong = || Error::value("fileAssets", path.clone(), "is not text in base64");
            let bytes = BASE64.decode(content.trim()).map_err(|_| wrong())?;
            content = String::from_utf8(bytes).map_err(|_| wrong())?;
        }
        if content.len() > MAX_FILE {
            return Err(Error::value("fileAssets", path, "has more than 1 MiB"));
        }
        let mode = asset.opt_text("mode").unwrap_or("0440");
        let is_octal = mode.len() <= 4 && mode.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        if !is_octal {
            return Err(Error::value(
                "fileAssets",
                format!("{path}: {mode}"),
                "has a mode that is not octal",
            ));
        }
        if let Some((parent, _)) = path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            tasks.directory(parent, Some("0755"));
        }
        tasks.text(&path, &content, Some(mode))?;
    }
    Ok(())
}

/// Rejects paths that are not absolute, or that lead elsewhere than they say.
pub(super) fn check_path(path: &str) -> Result<(), Error> {
    let wrong = |reason: &str| Err(Error::value("fileAssets", path, reason));
    let Some(rest) = path.strip_prefix('/') else {
        return wrong("is not an absolute path");
    };
    if path.len() > 1024 || path.chars().any(char::is_control) {
        return wrong("has control characters or more than 1,024 bytes");
    }
    match rest.split('/').find(|part| part.is_empty() || [".", ".."].contains(part)) {
        None => Ok(()),
        Some(_) => wrong("has empty parts or parts . or .., so it names another file"),
    }
}

/// Adds the names of the API to the hosts file, for clusters without DNS.
pub(super) fn hosts(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let record = |name: String, addresses: Vec<String>| HostRecord { name, addresses };
    let servers: Vec<String> = context.boot.texts("APIServerIPs").map(str::to_owned).collect();
    let mut records = Vec::new();
    if context.control_plane && !context.publishes_dns() {
        let here = vec!["127.0.0.1".to_owned()];
        records.push(record(context.api_name(), here.clone()));
        let name = context.config.opt_text("APIServerConfig.API.publicName");
        records.extend(name.map(|name| record(name.to_owned(), here)));
    } else if !servers.is_empty() {
        records.push(record(context.api_name(), servers.clone()));
        let name = format!("kops-controller.internal.{}", context.cluster());
        records.push(record(name, servers));
    }
    if records.is_empty() { Ok(()) } else { tasks.add(Task::Hosts(records)) }
}

/// Adds the service that sets the clock.
pub(super) fn clock(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    if context.config.flag("NTPUnmanaged") || !context.distribution.has_packages() {
        return Ok(());
    }
    tasks.add(Task::Package("chrony".to_owned()))?;
    let server = match context.cloud() {
        "aws" => Some("169.254.169.123"),
        "gce" => Some("time.google.com"),
        _ => None,
    };
    if let Some(server) = server {
        let text = format!(
            "# Built by kOps - do NOT edit\n\npool {server} prefer iburst\ndriftfile /var/lib/chrony/drift\n\
             leapsectz right/UTC\nlogdir /var/log/chrony\nmakestep 1.0 3\nmaxupdateskew 100.0\nrtcsync\n"
        );
        tasks.text("/etc/chrony/chrony.conf", &text, Some("0644"))?;
    }
    tasks.add(Task::Service(Service::running("chrony", None)))
}

/// Adds the rotation of the components' logs.
pub(super) fn log_rotation(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let is_flatcar = context.distribution == Distribution::Flatcar;
    if !is_flatcar {
        tasks.add(Task::Package("logrotate".to_owned()))?;
    }
    let mut logs = vec![
        "docker",
        "kube-addons",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-proxy",
        "kube-scheduler",
        "kubelet",
        "etcd",
        "etcd-events",
        "etcd-leases",
    ];
    if context.config.flag("UseCiliumEtcd") {
        logs.push("etcd-cilium");
    }
    // Flatcar names rotated files by the day, on which a large file is rotated several times.
    let format = if is_flatcar { "  dateformat -%Y%m%d-%s\n" } else { "" };
    for log in logs {
        let text = format!(
            "/var/log/{log}.log{{\n  rotate 5\n  copytruncate\n  missingok\n  notifempty\n  delaycompress\n  \
             maxsize 100M\n{format}  daily\n  create 0644 root root\n}}\n"
        );
        tasks.text(&format!("/etc/logrotate.d/{log}"), &text, Some("0644"))?;
    }
    if !is_flatcar {
        let unit = Unit::new("Unit", &[("Description", "Rotate and Compress System Logs")])
            .with("Service", &[("ExecStart", "/usr/sbin/logrotate /etc/logrotate.conf")]);
        tasks.add(Task::Service(Service::running("logrotate.service", Some(unit.render()))))?;
    }
    let unit = Unit::new("Unit", &[("Description", "Hourly Log Rotation")])
        .with("Timer", &[("OnCalendar", "hourly")]);
    tasks.add(Task::Service(Service::running("logrotate.timer", Some(unit.render()))))
}

/// Returns a unit that runs a script before the network starts.
pub(super) fn network_unit(description: &str, script: &str) -> String {
    Unit::new(
        "Unit",
        &[
            ("Description", description),
            ("Documentation", "https://github.com/kubernetes/kops"),
            ("Before", "network.target"),
        ],
    )
    .with("Service", &[("Type", "oneshot"), ("RemainAfterExit", "yes"), ("ExecStart", script)])
    .with("Install", &[("WantedBy", "basic.target")])
    .render()
}

/// Adds rules that accept packets on machines whose firewall drops them.
pub(super) fn firewall(_: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    const SCRIPT: &str = "/opt/kops/bin/iptables-setup";
    let chain = |chain: &str, kind: &str| {
        let accept = ["TCP", "UDP", "ICMP"]
            .map(|protocol| format!("iptables -A {chain} -w -p {protocol} -j ACCEPT\n"))
            .concat();
        format!(
            "if iptables -w -L {chain} | grep \"Chain {chain} (policy DROP)\" > /dev/null; then\n\
             echo \"Add rules to accept all {kind} TCP/UDP/ICMP packets\"\n{accept}fi\n"
        )
    };
    let text = format!(
        "#!/bin/bash\n# Built by kops - do not edit\n\n\
         # The GCI image has host firewall which drop most inbound/forwarded packets.\n\
         # We need to add rules to accept all TCP/UDP/ICMP packets.\n{}{}",
        chain("INPUT", "inbound"),
        chain("FORWARD", "forwarded")
    );
    tasks.text(SCRIPT, &text, Some("0755"))?;
    let unit = network_unit("Configure iptables for kubernetes", SCRIPT);
    let name = "kubernetes-iptables-setup.service";
    tasks.add(Task::Service(Service::running(name, Some(unit))))
}

/// Adds the images that a machine of a warm pool pulls in advance.
pub(super) fn warm_images(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    if context.inputs.machine.is_warming {
        for image in context.config.texts("warmPoolImages") {
            tasks.add(Task::Image(image.to_owned()))?;
        }
    }
    Ok(())
}

/// Adds the tools for the container runtime that the spec asks for.
pub(super) fn tools(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    for name in ["crictl", "nerdctl"] {
        let mut found = context.inputs.assets.iter().filter(|asset| asset.path == name);
        if let (Some(asset), None) = (found.next(), found.next()) {
            tasks.program(&format!("{}/{name}", context.user_programs()), asset.clone())?;
        }
    }
    Ok(())
}

/// Adds the CNI plugins.
pub(super) fn cni(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    if !context.config.flag("InstallCNIAssets") {
        return Ok(());
    }
    for asset in context.inputs.assets.iter().filter(|asset| asset.source.contains("cni-plugins")) {
        if !["LICENSE", "README.md"].contains(&asset.key.as_str()) {
            tasks.program(&format!("/opt/cni/bin/{}", asset.key), asset.clone())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_paths_that_name_other_files() {
        for path in [
            "",
            "a",
            "/a/../b",
            "/a/./b",
            "/a//b",
            "/",
            "/a/",
            "/a\nb",
            &format!("/{}", "a".repeat(1025)),
        ] {
            assert!(check_path(path).is_err(), "{path:?}");
        }
        assert!(check_path("/srv/kubernetes/assets/a..b").is_ok());
    }
}
