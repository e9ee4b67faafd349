//! The kubelet: its configuration, credentials and unit.

use api_meta::{GoDuration, Tree as _};
use kops_api::yaml;
use serde_json::{Map, Value, json};

use super::{
    context::{Context, Distribution, KUBELET_UNIT, SRV},
    flags::{flags, joined},
    task::{CertificateUse, Content, File, Service, Task, Tasks},
    unit::{Unit, unit_name},
};
use crate::error::Error;

const CONFIG: &str = "/var/lib/kubelet/kubelet.conf";
const KUBECONFIG: &str = "/var/lib/kubelet/kubeconfig";
const CREDENTIALS: &str = "/var/lib/kubelet/credential-provider.conf";
const SERVER: &str = "kubelet-server";
const FIELD: &str = "KubeletConfig";

/// The fields of a spec's kubelet that the kubelet's configuration has under the same name, unless a second name
/// follows.
const FIELDS: &[(&str, &str)] = &[
    ("cgroupDriver", ""),
    ("cgroupRoot", ""),
    ("tlsCipherSuites", ""),
    ("tlsMinVersion", ""),
    ("clusterDomain", ""),
    ("enableDebuggingHandlers", ""),
    ("hairpinMode", ""),
    ("podManifestPath", "staticPodPath"),
    ("kubeletCgroups", ""),
    ("systemCgroups", ""),
    ("podCIDR", ""),
    ("resolvConf", ""),
    ("serializeImagePulls", ""),
    ("maxParallelImagePulls", ""),
    ("allowedUnsafeSysctls", ""),
    ("cpuCFSQuota", ""),
    ("cpuCFSQuotaPeriod", ""),
    ("cpuManagerPolicy", ""),
    ("registryPullQPS", ""),
    ("topologyManagerPolicy", ""),
    ("containerLogMaxSize", ""),
    ("containerLogMaxFiles", ""),
    ("podPidsLimit", ""),
    ("imageGCHighThresholdPercent", ""),
    ("imageGCLowThresholdPercent", ""),
    ("imageMaximumGCAge", ""),
    ("nodeStatusUpdateFrequency", ""),
    ("nodeLeaseDurationSeconds", ""),
    ("seccompDefault", ""),
    ("kubeReserved", ""),
    ("kubeReservedCgroup", ""),
    ("systemReserved", ""),
    ("systemReservedCgroup", ""),
    ("failSwapOn", ""),
    ("evictionPressureTransitionPeriod", ""),
    ("eventRecordQPS", ""),
    ("memorySwapBehavior", "memorySwap.swapBehavior"),
    ("logFormat", "logging.format"),
    ("crashLoopBackOffMaxContainerRestartPeriod", "crashLoopBackOff.maxContainerRestartPeriod"),
    ("shutdownGracePeriod", ""),
    ("shutdownGracePeriodCriticalPods", ""),
    ("anonymousAuth", "authentication.anonymous.enabled"),
    ("authenticationTokenWebhook", "authentication.webhook.enabled"),
    ("clientCAFile", "authentication.x509.clientCAFile"),
    ("authorizationMode", "authorization.mode"),
    ("volumePluginDirectory", "volumePluginDir"),
    // The newer name gives way to the older one.
    ("eventQPS", "eventRecordQPS"),
];

/// Fields that are left out if they are false or zero.
const NON_ZERO_FIELDS: [&str; 6] = [
    "rotateCertificates",
    "protectKernelDefaults",
    "kernelMemcgNotification",
    "maxPods",
    "readOnlyPort",
    "evictionMaxPodGracePeriod",
];

pub(super) fn build(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let config = settings(context);
    serving_certificate(context, tasks)?;
    tasks.add(Task::File(File {
        path: CONFIG.to_owned(),
        content: Some(Content::Text(yaml::to_string(&configuration(context, &config)?))),
        before_services: vec![KUBELET_UNIT.to_owned()],
        ..File::default()
    }))?;
    tasks.text("/etc/sysconfig/kubelet", &environment(context, &config)?, None)?;
    tasks.program(&format!("{}/kubelet", context.programs()), context.asset("kubelet")?)?;
    if let Some(path) = config.opt_text("podManifestPath") {
        tasks.directory(path, Some("0755"));
    }
    tasks.directory("/var/lib/kubelet", Some("0755"));
    let node = format!("system:node:{}", node_name(context));
    let content = context.kubeconfig(tasks, "kubelet", &node, &["system:nodes"])?;
    context.kubeconfig_file(tasks, KUBECONFIG, content, &[KUBELET_UNIT])?;
    if !context.config.flag("UsesKubenet") {
        tasks.directory("/etc/cni/net.d/", None);
    }
    for field in ["kubeletCgroups", "runtimeCgroups", "systemCgroups"] {
        if let Some(name) = config.opt_text(field) {
            tasks.add(slice(name)?)?;
        }
    }
    tasks.add(service(context)?)
}

/// Returns the spec's settings with the defaults that depend on the machine.
fn settings(context: &Context<'_>) -> Value {
    let mut config = context.config.at(FIELD).clone();
    if config.is_null() {
        config = json!({});
    }
    config.put("clientCAFile", format!("{SRV}/ca.crt"));
    config.set_default("runtimeRequestTimeout", "15m0s");
    if !context.version.is_before(35) && context.control_plane {
        config.put("crashLoopBackOffMaxContainerRestartPeriod", "1m0s");
    }
    config.put("volumePluginDirectory", context.volume_plugins());
    let has_loopback = context.distribution != Distribution::Debian;
    if has_loopback || context.inputs.machine.has_resolved {
        config.set_default("resolvConf", "/run/systemd/resolve/resolv.conf");
    }
    // Labels are set by kops-controller.
    config.remove("nodeLabels");
    config.put_default("authorizationMode", "Webhook");
    config.set_default("authenticationTokenWebhook", true);
    config
}

/// Returns the kubelet's configuration, which has the zero values that upstream writes.
fn configuration(context: &Context<'_>, config: &Value) -> Result<Value, Error> {
    let mut tree = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {}, "webhook": {"cacheTTL": "0s"}, "x509": {}},
        "authorization": {"webhook": {"cacheAuthorizedTTL": "0s", "cacheUnauthorizedTTL": "0s"}},
        "crashLoopBackOff": {}, "memorySwap": {},
        "logging": {
            "flushFrequency": 0, "verbosity": 0,
            "options": {"json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"}},
        },
        "tlsCertFile": format!("{SRV}/{SERVER}.crt"), "tlsPrivateKeyFile": format!("{SRV}/{SERVER}.key"),
        "clusterDNS": [config.text("clusterDNS")],
    });
    for name in [
        "cpuManagerReconcilePeriod",
        "evictionPressureTransitionPeriod",
        "fileCheckFrequency",
        "httpCheckFrequency",
        "imageMaximumGCAge",
        "imageMinimumGCAge",
        "nodeStatusReportFrequency",
        "nodeStatusUpdateFrequency",
        "runtimeRequestTimeout",
        "shutdownGracePeriod",
        "shutdownGracePeriodCriticalPods",
        "streamingConnectionIdleTimeout",
        "syncFrequency",
        "volumeStatsAggPeriod",
    ] {
        tree.put(name, "0s");
    }
    for (from, to) in FIELDS {
        let to = if to.is_empty() { from } else { to };
        if !config.blank(*from) {
            tree.put(*to, duration(from, config.at(*from)));
        }
    }
    for name in NON_ZERO_FIELDS {
        let value = config.at(name);
        if !api_meta::is_zero(value) && !value.is_null() {
            tree.put(name, value.clone());
        }
    }
    let socket = context.config.opt_text("containerdConfig.address");
    let socket = socket.unwrap_or("/run/containerd/containerd.sock");
    tree.put("containerRuntimeEndpoint", format!("unix://{socket}"));
    set_lists(config, &mut tree)?;
    Ok(tree)
}

/// Sets the fields that the spec has as text, and the configuration as lists and maps.
fn set_lists(config: &Value, tree: &mut Value) -> Result<(), Error> {
    for (name, separator) in [
        ("evictionHard", '<'),
        ("evictionSoft", '<'),
        ("evictionSoftGracePeriod", '='),
        ("evictionMinimumReclaim", '='),
    ] {
        let pairs = pairs(name, config.text(name), separator)?;
        if !pairs.is_empty() {
            tree.put(name, pairs);
        }
    }
    let mut gates = Map::new();
    for (name, value) in config.pairs("featureGates") {
        gates.insert(name.clone(), gate(name, value)?.into());
    }
    if !gates.is_empty() {
        tree.put("featureGates", gates);
    }
    if let Some(list) = config.opt_text("enforceNodeAllocatable") {
        tree.put("enforceNodeAllocatable", list.split(',').collect::<Vec<_>>());
    }
    for text in config.texts("taints") {
        tree.push("registerWithTaints", taint(text)?);
    }
    Ok(())
}

/// Returns a value; durations are written as Go writes them.
fn duration(field: &str, value: &Value) -> Value {
    let is_duration = ["Age", "Frequency", "Period", "PeriodCriticalPods"];
    let parsed = value.as_str().and_then(|text| text.parse::<GoDuration>().ok());
    match parsed.filter(|_| is_duration.iter().any(|end| field.ends_with(end))) {
        Some(duration) => duration.to_string().into(),
        None => value.clone(),
    }
}

fn pairs(field: &str, text: &str, separator: char) -> Result<Map<String, Value>, Error> {
    let mut pairs = Map::new();
    for pair in text.split(',').filter(|_| !text.is_empty()) {
        let (name, value) = pair.split_once(separator).ok_or_else(|| {
            let reason = format!("has an entry without {separator:?}");
            Error::value(&format!("{FIELD}.{field}"), text, reason)
        })?;
        pairs.insert(name.trim().to_owned(), value.trim().into());
    }
    Ok(pairs)
}

fn gate(name: &str, value: &Value) -> Result<bool, Error> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match text.as_str() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(Error::value(
            &format!("{FIELD}.featureGates.{name}"),
            text.clone(),
            "is neither true nor false",
        )),
    }
}

fn taint(text: &str) -> Result<Value, Error> {
    let wrong = || Error::value(&format!("{FIELD}.taints"), text, "is not KEY=VALUE:EFFECT");
    let (pair, effect) = text.split_once(':').unwrap_or((text, ""));
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    if effect.contains(':') || value.contains('=') || key.is_empty() {
        return Err(wrong());
    }
    let mut taint = json!({"key": key, "effect": effect});
    if !value.is_empty() {
        taint.put("value", value);
    }
    Ok(taint)
}

/// Returns the environment file with the kubelet's command line.
fn environment(context: &Context<'_>, config: &Value) -> Result<String, Error> {
    let mut all = flags("kubelet", config);
    if context.is_ipv6_only() {
        all.push("--node-ip=::".to_owned());
    }
    all.push(format!("--config={CONFIG}"));
    if ["aws", "gce"].contains(&context.cloud()) {
        all.push(format!("--image-credential-provider-config={CREDENTIALS}"));
        all.push(format!("--image-credential-provider-bin-dir={}", context.programs()));
    }
    let line = joined("kubelet", &all)?;
    Ok(format!("DAEMON_ARGS=\"{line}\"\nHOME=\"/root\"\n"))
}

/// Adds the certificate with which the kubelet serves.
fn serving_certificate(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let machine = &context.inputs.machine;
    let mut names = machine.addresses.clone();
    names.push(machine.hostname.clone());
    let common_name = names.first().cloned().unwrap_or_default();
    let mut certificate = context.certificate(SERVER, CertificateUse::Server, &common_name);
    certificate.names = names;
    tasks.add(Task::Certificate(certificate))?;
    tasks.directory(SRV, Some("0755"));
    for (end, mode, content) in [
        ("crt", "0644", Content::Certificate(SERVER.to_owned())),
        ("key", "0400", Content::Key(SERVER.to_owned())),
    ] {
        tasks.add(Task::File(File {
            path: format!("{SRV}/{SERVER}.{end}"),
            content: Some(content),
            mode: Some(mode.to_owned()),
            before_services: vec![KUBELET_UNIT.to_owned()],
            ..File::default()
        }))?;
    }
    Ok(())
}

/// Returns the name of the machine's Node.
fn node_name(context: &Context<'_>) -> String {
    let own = context.config.opt_text("KubeletConfig.hostnameOverride");
    own.unwrap_or(&context.inputs.machine.hostname).trim().to_lowercase()
}

/// Returns the unit of a cgroup.
fn slice(cgroup: &str) -> Result<Task, Error> {
    let name = unit_name(FIELD, &format!("{}.slice", cgroup.trim_matches('/')))?;
    let unit = Unit::new(
        "Unit",
        &[
            ("Documentation", "man:systemd.special(7)"),
            ("Before", "slices.target"),
            ("DefaultDependencies", "no"),
        ],
    );
    Ok(Task::Service(Service {
        enabled: false,
        running: false,
        smart_restart: false,
        manage_state: false,
        ..Service::running(&name, Some(unit.render()))
    }))
}

fn service(context: &Context<'_>) -> Result<Task, Error> {
    let start = format!("{}/kubelet \"$DAEMON_ARGS\"", context.programs());
    let mut unit = Unit::new(
        "Unit",
        &[
            ("Description", "Kubernetes Kubelet Server"),
            ("Documentation", "https://github.com/kubernetes/kubernetes"),
            ("After", "containerd.service"),
        ],
    )
    .with(
        "Service",
        &[
            ("EnvironmentFile", "/etc/sysconfig/kubelet"),
            ("ExecStart", &start),
            ("Restart", "always"),
            ("RestartSec", "2s"),
            ("StartLimitInterval", "0"),
            ("KillMode", "process"),
            ("User", "root"),
            ("CPUAccounting", "true"),
            ("MemoryAccounting", "true"),
        ],
    )
    .with("Install", &[("WantedBy", "multi-user.target")]);
    if let Some(cgroup) = context.config.opt_text("KubeletConfig.kubeletCgroups") {
        let slice = unit_name(FIELD, &format!("{}.slice", cgroup.trim_matches('/')))?;
        unit = unit.with("Service", &[("Slice", &slice)]);
    }
    let runs = !context.inputs.machine.is_warming;
    Ok(Task::Service(Service {
        enabled: runs,
        running: runs,
        ..Service::running(KUBELET_UNIT, Some(unit.render()))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_lists_of_pairs_and_taints() {
        let found =
            pairs("evictionSoft", " memory.available < 100Mi,nodefs.available<10%", '<').unwrap();
        assert_eq!(found.get("memory.available"), Some(&json!("100Mi")));
        assert!(pairs("evictionSoft", "memory.available", '<').is_err());
        assert!(pairs("evictionSoft", "", '<').unwrap().is_empty());
        assert_eq!(
            taint("a=b:NoSchedule").unwrap(),
            json!({"key": "a", "value": "b", "effect": "NoSchedule"})
        );
        assert_eq!(taint("a:NoSchedule").unwrap(), json!({"key": "a", "effect": "NoSchedule"}));
        for wrong in ["a=b:c:d", "a=b=c:d", ":NoSchedule", ""] {
            assert!(taint(wrong).is_err(), "{wrong}");
        }
        assert!(gate("A", &json!("yes")).is_err());
        assert!(gate("A", &json!("T")).unwrap());
    }
}
