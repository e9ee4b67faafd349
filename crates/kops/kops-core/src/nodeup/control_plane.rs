//! The other programs of control planes: controller manager, scheduler, kops-controller, channels and etcd.

use api_meta::{Quantity, Tree as _};
use kops_api::yaml;
use serde_json::{Value, json};

use super::{
    context::{CA, Context, MANIFESTS, SRV},
    flags::{flags, joined},
    pod::{CLUSTER_CRITICAL, Pod, add_manifest, probe, relax_selinux},
    task::{CertificateUse, Content, File, Service, Task, Tasks, User},
    unit::Unit,
};
use crate::error::Error;

const SCHEDULER_CONFIG: &str = "/var/lib/kube-scheduler/config.yaml";
const CHANNELS: &str = "kops-channels";
const CONTROLLER: &str = "kops-controller";
const ADMINS: &str = "system:masters";

pub(super) fn controller_manager(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    const NAME: &str = "kube-controller-manager";
    if !context.control_plane {
        return Ok(());
    }
    let directory = format!("{SRV}/{NAME}");
    let kubeconfig = format!("/var/lib/{NAME}/kubeconfig");
    let mut config = component(context, "KubeControllerManager");
    context.keypair_files(tasks, CA, &format!("{directory}/ca"), None, true)?;
    let account = format!("{directory}/service-account");
    context.keypair_files(tasks, "service-account", &account, None, false)?;
    config.put("rootCAFile", format!("{SRV}/ca.crt"));
    config.put("serviceAccountPrivateKeyFile", format!("{account}.key"));
    server_certificate(context, tasks, NAME, &mut config)?;
    let mut all = flags(NAME, &config);
    all.extend(
        ["", "authentication-", "authorization-"]
            .map(|kind| format!("--{kind}kubeconfig={kubeconfig}")),
    );
    all.push(format!("--cluster-signing-cert-file={directory}/ca.crt"));
    all.push(format!("--cluster-signing-key-file={directory}/ca.key"));
    let plugins = context.volume_plugins();
    all.push(format!("--flex-volume-plugin-dir={plugins}"));
    all.sort();
    let mut pod = Pod::new(context, NAME, &config, all)
        .with_resources(&config, "100m")
        .with_environment(context.proxy_environment())
        .write("logfile", &format!("/var/log/{NAME}.log"))
        .read_authorities(context.distribution)
        .read("cabundle", &format!("{SRV}/ca.crt"))
        .read("srvkcm", &directory)
        .read("varlibkcm", &format!("/var/lib/{NAME}"))
        .write("volplugins", &plugins);
    pod.container.put("livenessProbe", liveness(10257));
    add_manifest(tasks, NAME, &pod.build(context, CLUSTER_CRITICAL))?;
    tasks.log_file(NAME)?;
    let content = context.kubeconfig(tasks, NAME, "system:kube-controller-manager", &[])?;
    context.kubeconfig_file(tasks, &kubeconfig, content, &[])
}

pub(super) fn scheduler(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    const NAME: &str = "kube-scheduler";
    if !context.control_plane {
        return Ok(());
    }
    let kubeconfig = format!("/var/lib/{NAME}/kubeconfig");
    let mut config = component(context, "KubeScheduler");
    server_certificate(context, tasks, NAME, &mut config)?;
    let mut all = flags(NAME, &config);
    all.push(format!("--config={SCHEDULER_CONFIG}"));
    all.push("--authentication-tolerate-lookup-failure=false".to_owned());
    all.push("--authentication-skip-lookup=false".to_owned());
    all.extend(
        ["authentication", "authorization"].map(|kind| format!("--{kind}-kubeconfig={kubeconfig}")),
    );
    all.sort();
    let mut environment = context.proxy_environment();
    if let Some(count) = config.opt_int("maxPersistentVolumes") {
        environment.push(json!({"name": "KUBE_MAX_PD_VOLS", "value": count.to_string()}));
    }
    let mut pod = Pod::new(context, NAME, &config, all)
        .with_resources(&config, "100m")
        .with_environment(environment)
        .read("varlibkubescheduler", &format!("/var/lib/{NAME}"))
        .read("srvscheduler", &format!("{SRV}/{NAME}"))
        .write("logfile", &format!("/var/log/{NAME}.log"));
    pod.container.put("livenessProbe", liveness(10259));
    add_manifest(tasks, NAME, &pod.build(context, CLUSTER_CRITICAL))?;
    let content = context.kubeconfig(tasks, NAME, "system:kube-scheduler", &[])?;
    context.kubeconfig_file(tasks, &kubeconfig, content, &[])?;
    let assets = context.config.items("FileAssets");
    if !assets.iter().any(|asset| asset.text("path") == SCHEDULER_CONFIG) {
        tasks.text(SCHEDULER_CONFIG, &scheduler_config(&config, &kubeconfig), Some("0400"))?;
    }
    tasks.log_file(NAME)
}

/// Returns the scheduler's configuration for node configurations that contain none.
fn scheduler_config(config: &Value, kubeconfig: &str) -> String {
    let mut tree = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
    });
    let quantity = config.opt_text("qps").and_then(|text| text.parse::<Quantity>().ok());
    let qps = quantity.map(|quantity| quantity.as_f64()).or_else(|| config.at("qps").as_f64());
    if let Some(qps) = qps {
        tree.put("clientConnection.qps", qps);
    }
    if let Some(burst) = config.opt_int("burst").filter(|burst| *burst != 0) {
        tree.put("clientConnection.burst", burst);
    }
    yaml::to_string(&tree)
}

/// Returns the configuration of a component of control planes.
fn component(context: &Context<'_>, name: &str) -> Value {
    let config = context.config.at(["ControlPlaneConfig", name].as_slice());
    if config.is_null() { json!({}) } else { config.clone() }
}

fn liveness(port: i64) -> Value {
    let mut probe = probe("/healthz", port, true);
    probe.put("initialDelaySeconds", 15);
    probe.put("timeoutSeconds", 15);
    probe
}

/// Writes a component's serving certificate, unless the spec names one.
fn server_certificate(
    context: &Context<'_>,
    tasks: &mut Tasks,
    name: &str,
    config: &mut Value,
) -> Result<(), Error> {
    if config.has("tlsCertFile") {
        return Ok(());
    }
    let domain = context.config.text("APIServerConfig.ClusterDNSDomain");
    let mut certificate =
        context.certificate(&format!("{name}-server"), CertificateUse::Server, name);
    certificate.names = vec![format!("{name}.kube-system.svc.{domain}")];
    let directory = format!("{SRV}/{name}");
    tasks.certificate_files(certificate, &directory, "server", None)?;
    config.put("tlsCertFile", format!("{directory}/server.crt"));
    config.put("tlsPrivateKeyFile", format!("{directory}/server.key"));
    Ok(())
}

/// Adds the keys of kops-controller, which runs as a user of its own.
pub(super) fn kops_controller(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    if !context.control_plane {
        return Ok(());
    }
    let directory = format!("/etc/kubernetes/{CONTROLLER}");
    tasks.directory(&directory, Some("0755"));
    add_user(tasks, CONTROLLER, 10011, "")?;
    let mut certificate = context.certificate(CONTROLLER, CertificateUse::Server, CONTROLLER);
    certificate.names = vec![format!("{CONTROLLER}.internal.{}", context.cluster())];
    certificate.names.extend(context.boot.texts("APIServerIPs").map(str::to_owned));
    tasks.certificate_files(certificate, &directory, CONTROLLER, Some(CONTROLLER))?;
    let mut keysets = vec![CA];
    if context.config.flag("UseCiliumEtcd") {
        keysets.push("etcd-clients-ca-cilium");
    }
    for keyset in keysets {
        let path = format!("{directory}/{keyset}");
        context.keypair_files(tasks, keyset, &path, Some(CONTROLLER), true)?;
    }
    tasks.add(Task::File(File {
        path: format!("{directory}/keypair-ids.yaml"),
        content: Some(Content::Text(yaml::to_string(context.config.at("KeypairIDs")))),
        mode: Some("0600".to_owned()),
        owner: Some(CONTROLLER.to_owned()),
        ..File::default()
    }))
}

fn add_user(tasks: &mut Tasks, name: &str, uid: u32, home: &str) -> Result<(), Error> {
    tasks.add(Task::User(User {
        name: name.to_owned(),
        uid,
        shell: "/sbin/nologin".to_owned(),
        home: home.to_owned(),
    }))
}

/// Adds the static Pod that applies the add-ons, and its credentials.
pub(super) fn channels(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let path = context.config.text("channelsManifest");
    if !context.control_plane || path.is_empty() {
        return Ok(());
    }
    add_user(tasks, CHANNELS, 10013, "/var/lib/kops")?;
    let content = context.kubeconfig(tasks, "kops", "kops", &[ADMINS])?;
    tasks.add(Task::File(File {
        path: "/var/lib/kops/kubeconfig".to_owned(),
        content: Some(content),
        mode: Some("0400".to_owned()),
        owner: Some(CHANNELS.to_owned()),
        ..File::default()
    }))?;
    let mut text = context.stored(path)?.to_owned();
    if context.config.flag("containerdConfig.selinuxEnabled") {
        let mut pod = yaml::parse(path, text.as_bytes())?;
        relax_selinux(context, &mut pod);
        text = yaml::to_string(&pod);
    }
    tasks.text(&format!("{MANIFESTS}/{CHANNELS}.manifest"), &text, None)
}

/// Adds etcd's static Pods and the keys of its manager.
pub(super) fn etcd(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    if !context.control_plane {
        return Ok(());
    }
    for path in context.config.texts("etcdManifests") {
        let name = path.rsplit('/').next().unwrap_or(path);
        let name = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let target = format!("{MANIFESTS}/etcd-{name}.manifest");
        tasks.text(&target, context.stored(path)?, Some("0440"))?;
    }
    for name in context.config.texts("EtcdClusterNames") {
        let directory = format!("/etc/kubernetes/pki/etcd-manager-{name}");
        let shared = ["main", "events", "leases"].contains(&name);
        let clients =
            if shared { "etcd-clients-ca".to_owned() } else { format!("etcd-clients-ca-{name}") };
        for (file, keyset) in [
            ("etcd-manager-ca", format!("etcd-manager-ca-{name}")),
            ("etcd-peers-ca", format!("etcd-peers-ca-{name}")),
            ("etcd-clients-ca", clients),
        ] {
            let path = format!("{directory}/{file}");
            context.keypair_files(tasks, &keyset, &path, None, false)?;
            tasks.text(&format!("{path}.crt"), context.authorities(&keyset), Some("0644"))?;
        }
    }
    Ok(())
}

/// Adds the service by which machines of clusters with gossip find each other.
pub(super) fn protokube(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let knows_api = !context.boot.blank("APIServerIPs");
    if !context.config.flag("usesLegacyGossip") || (!context.control_plane && knows_api) {
        return Ok(());
    }
    const PROGRAM: &str = "/opt/kops/bin/protokube";
    tasks.program(PROGRAM, context.asset("protokube")?)?;
    let environment = context.proxy_environment();
    let variable = |tree: &Value| format!("{}={}\n", tree.text("name"), tree.text("value"));
    let text: String = environment.iter().map(variable).collect();
    tasks.text("/etc/sysconfig/protokube", &text, None)?;
    let gossip = context.config.at("GossipConfig");
    let mut all: Vec<String> = [
        ("gossip-protocol", "protocol"),
        ("gossip-listen", "listen"),
        ("gossip-secret", "secret"),
        ("gossip-protocol-secondary", "secondary.protocol"),
        ("gossip-listen-secondary", "secondary.listen"),
        ("gossip-secret-secondary", "secondary.secret"),
    ]
    .iter()
    .filter_map(|(flag, field)| Some(format!("--{flag}={}", gossip.opt_text(*field)?)))
    .collect();
    all.push(format!("--cloud={}", context.cloud()));
    all.extend(["--containerized=false", "--gossip=true", "--v=4"].map(str::to_owned));
    all.sort();
    let start = format!("{PROGRAM} {}", joined("protokube", &all)?);
    let unit = Unit::new(
        "Unit",
        &[
            ("Description", "Kubernetes Protokube Service"),
            ("Documentation", "https://kops.sigs.k8s.io"),
        ],
    )
    .with(
        "Service",
        &[
            ("ExecStart", &start),
            ("EnvironmentFile", "/etc/sysconfig/protokube"),
            ("Restart", "always"),
            ("RestartSec", "3s"),
            ("StartLimitInterval", "0"),
        ],
    )
    .with("Install", &[("WantedBy", "multi-user.target")]);
    tasks.add(Task::Service(Service::running("protokube.service", Some(unit.render()))))
}
