//! containerd: programs, configuration and unit.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    context::{Context, Distribution},
    flags::{flags, joined},
    task::{Asset, Content, File, Service, Task, Tasks},
    toml::{split_path, to_toml},
    unit::{Unit, unit_name},
};
use crate::{error::Error, version::Version};

const CONFIG: &str = "/etc/containerd/config.toml";
const REGISTRIES: &str = "/etc/containerd/certs.d";
const TEMPLATE: &str = "/etc/containerd/config-cni.template";
const MASQUERADE: &str = "/opt/kops/bin/cni-iptables-setup";
const LICENSE: &str = include_str!("containerd-license.txt");

pub(super) fn build(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let config = context.config.at("containerdConfig");
    if config.flag("skipInstall") {
        return Ok(());
    }
    if context.config.flag("UsesKubenet") {
        add_template(context, tasks)?;
        add_masquerade(context, tasks)?;
    }
    if config.has("configOverride") {
        tasks.text(CONFIG, config.text("configOverride"), None)?;
    } else {
        add_registries(config, tasks)?;
        tasks.text(CONFIG, &to_toml(&configuration(context, config)?), None)?;
    }
    if context.distribution == Distribution::Flatcar {
        return tasks.add(Task::File(drop_in()));
    }
    install(context, config, tasks)
}

/// Returns the settings that replace those of Flatcar's own unit. nodeup runs again with the restarted containerd.
fn drop_in() -> File {
    let lines = [
        "[Service]",
        "EnvironmentFile=/etc/environment",
        "ExecStart=",
        "ExecStart=/usr/bin/containerd --config /etc/containerd/config.toml",
    ];
    let command = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    File {
        path: "/etc/systemd/system/containerd.service.d/10-kops.conf".to_owned(),
        content: Some(Content::Text(lines.join("\n"))),
        after_files: vec![CONFIG.to_owned()],
        on_change: vec![
            command(&["systemctl", "daemon-reload"]),
            command(&["systemctl", "restart", "containerd.service"]),
            command(&["systemctl", "restart", "kops-configuration.service", "&"]),
        ],
        ..File::default()
    }
}

fn install(context: &Context<'_>, config: &Value, tasks: &mut Tasks) -> Result<(), Error> {
    tasks.text("/usr/share/doc/containerd/apache.txt", LICENSE, None)?;
    let programs = find(context, &["bin/", "usr/local/bin/", "docker/"], |name| {
        name.starts_with("containerd") || name.starts_with("ctr")
    });
    let remedy = "the node configuration's Assets must contain a release of it";
    let unknown = |name: &str| Error::Unknown { what: "program", name: name.to_owned(), remedy };
    if programs.is_empty() {
        return Err(unknown("containerd"));
    }
    for asset in programs {
        tasks.program(&format!("/usr/bin/{}", asset.key), asset)?;
    }
    let is_release =
        |asset: &&Asset| ["/runc.amd64", "/runc.arm64"].iter().any(|end| asset.path.ends_with(end));
    let mut runc: Vec<Asset> = context.inputs.assets.iter().filter(is_release).cloned().collect();
    if runc.is_empty() {
        runc = find(context, &["usr/local/sbin/", "docker/"], |name| name == "runc");
    }
    let [runc] = runc.as_slice() else { return Err(unknown("runc")) };
    tasks.program("/usr/sbin/runc", runc.clone())?;
    let crictl = "\nruntime-endpoint: unix:///run/containerd/containerd.sock\n";
    tasks.text("/etc/crictl.yaml", crictl, None)?;
    let all = joined("containerd", &flags("containerd", config))?;
    tasks.text("/etc/sysconfig/containerd", &format!("CONTAINERD_OPTS={all}"), None)?;
    tasks.add(service(context)?)
}

/// Returns the members of archives in the first of several directories that has any.
fn find(
    context: &Context<'_>,
    directories: &[&str],
    is_wanted: impl Fn(&str) -> bool,
) -> Vec<Asset> {
    let below = |directory: &str| -> Vec<Asset> {
        let assets = context.inputs.assets.iter();
        let is_found = |asset: &&Asset| {
            let path = asset.path.strip_prefix("./").unwrap_or(&asset.path);
            path.strip_prefix(directory).is_some_and(&is_wanted)
        };
        assets.filter(is_found).cloned().collect()
    };
    directories
        .iter()
        .map(|directory| below(directory))
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

fn service(context: &Context<'_>) -> Result<Task, Error> {
    let start = format!("/usr/bin/containerd -c {CONFIG} \"$CONTAINERD_OPTS\"");
    let mut unit = Unit::new(
        "Unit",
        &[
            ("Description", "containerd container runtime"),
            ("Documentation", "https://containerd.io"),
            ("After", "network.target dbus.service"),
        ],
    )
    .with(
        "Service",
        &[
            ("EnvironmentFile", "/etc/sysconfig/containerd"),
            ("EnvironmentFile", "/etc/environment"),
            ("ExecStartPre", "-/sbin/modprobe overlay"),
            ("ExecStart", &start),
            ("Type", "notify"),
            ("Delegate", "yes"),
            ("KillMode", "process"),
            ("Restart", "always"),
            ("RestartSec", "5"),
            ("LimitNPROC", "infinity"),
            ("LimitCORE", "infinity"),
            ("LimitNOFILE", "1048576"),
            ("TasksMax", "infinity"),
            ("OOMScoreAdjust", "-999"),
        ],
    )
    .with("Install", &[("WantedBy", "multi-user.target")]);
    if let Some(cgroup) = context.config.opt_text("KubeletConfig.runtimeCgroups") {
        let name = format!("{}.slice", cgroup.trim_matches('/'));
        unit =
            unit.with("Service", &[("Slice", &unit_name("KubeletConfig.runtimeCgroups", &name)?)]);
    }
    Ok(Task::Service(Service::running("containerd.service", Some(unit.render()))))
}

/// The names of the plugins in the two versions of containerd's configuration.
struct Schema {
    version: i64,
    runtime: &'static str,
    images: &'static str,
    sandbox: &'static [&'static str],
}

const V2: Schema = Schema {
    version: 2,
    runtime: "io.containerd.grpc.v1.cri",
    images: "io.containerd.grpc.v1.cri",
    sandbox: &["sandbox_image"],
};
/// The version since containerd 2.0.
const V3: Schema = Schema {
    version: 3,
    runtime: "io.containerd.cri.v1.runtime",
    images: "io.containerd.cri.v1.images",
    sandbox: &["pinned_images", "sandbox"],
};

/// Returns containerd's configuration.
fn configuration(context: &Context<'_>, config: &Value) -> Result<Value, Error> {
    let schema = match config.opt_text("version") {
        Some(version) if version.parse::<Version>()?.major >= 2 => V3,
        _ => V2,
    };
    let mut tree = json!({"version": schema.version});
    let mut set = |plugin: &str, path: &[&str], value: Value| {
        let path: Vec<&str> = ["plugins", plugin].iter().chain(path).copied().collect();
        tree.put(path.as_slice(), value);
    };
    let nri = config.at("nri");
    if !nri.is_null() && nri.opt_flag("enabled") != Some(false) {
        let plugin = "io.containerd.nri.v1.nri";
        set(plugin, &["disable"], false.into());
        for (field, name) in [
            ("pluginRequestTimeout", "plugin_request_timeout"),
            ("pluginRegistrationTimeout", "plugin_registration_timeout"),
        ] {
            nri.opt_at(field).into_iter().for_each(|value| set(plugin, &[name], value.clone()));
        }
    }
    if config.flag("selinuxEnabled") {
        set(schema.runtime, &["enable_selinux"], true.into());
    }
    if let Some(image) = config.opt_at("sandboxImage") {
        set(schema.images, schema.sandbox, image.clone());
    }
    if !config.blank("registryMirrors") {
        set(schema.images, &["registry", "config_path"], REGISTRIES.into());
    }
    set(schema.runtime, &["containerd", "default_runtime_name"], "runc".into());
    let runc = ["containerd", "runtimes", "runc"];
    set(schema.runtime, &[&runc[..], &["runtime_type"]].concat(), "io.containerd.runc.v2".into());
    set(schema.runtime, &[&runc[..], &["options", "SystemdCgroup"]].concat(), true.into());
    if context.config.flag("UsesKubenet") {
        set(schema.runtime, &["cni", "conf_template"], TEMPLATE.into());
    }
    add_settings(config, &mut tree)?;
    Ok(tree)
}

/// Adds the settings of the spec. A path that leads through a plain value is rejected.
fn add_settings(config: &Value, tree: &mut Value) -> Result<(), Error> {
    for (path, value) in config.pairs("configAdditions") {
        let wrong = |reason: &str| Error::value("containerd.configAdditions", path.clone(), reason);
        let parts = split_path(path).ok_or_else(|| wrong("is not a path with dots"))?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let value = match value.as_str() {
            Some("true") => true.into(),
            Some("false") => false.into(),
            _ => value.clone(),
        };
        tree.put(parts.as_slice(), value.clone());
        if *tree.at(parts.as_slice()) != value {
            return Err(wrong("leads through a setting that is no table"));
        }
    }
    Ok(())
}

/// Adds the addresses of registries' mirrors, in the order in which they are asked.
fn add_registries(config: &Value, tasks: &mut Tasks) -> Result<(), Error> {
    for (name, mirrors) in config.pairs("registryMirrors") {
        let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
        let directory = if name == "*" { "_default" } else { name.as_str() };
        if directory.is_empty() || directory.starts_with('.') || !directory.chars().all(is_host) {
            let reason = "is not the name of a registry";
            return Err(Error::value("containerd.registryMirrors", name.clone(), reason));
        }
        let mirrors = mirrors.as_array().into_iter().flatten().filter_map(Value::as_str);
        let entry = |mirror: &str| {
            let quoted = Value::from(mirror);
            format!("[host.{quoted}]\n  capabilities = [\"pull\", \"resolve\"]\n\n")
        };
        let text: String = mirrors.map(entry).collect();
        tasks.text(&format!("{REGISTRIES}/{directory}/hosts.toml"), &text, None)?;
    }
    Ok(())
}

/// Adds the template of the Pod network's configuration, which containerd completes with the Node's range.
fn add_template(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let routes = if context.is_ipv6_only() {
        r#"[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]"#
    } else {
        r#"[{"dst":"0.0.0.0/0"}]"#
    };
    let text = format!(
        r#"{{
    "cniVersion": "1.0.0",
    "name": "k8s-pod-network",
    "plugins": [
        {{
            "type": "ptp",
            "ipam": {{
                "type": "host-local",
                "ranges": [[{{"subnet": "{{{{.PodCIDR}}}}"}}]],
                "routes": {routes}
            }}
        }},
        {{
            "type": "portmap",
            "capabilities": {{"portMappings": true}}
        }}
    ]
}}
"#
    );
    tasks.text(TEMPLATE, &text, None)
}

/// Adds the service that translates the addresses of Pods to those of the machine, outside of the cluster's range.
fn add_masquerade(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let range = context.config.text("Networking.nonMasqueradeCIDR");
    if range.is_empty() || range.ends_with("/0") {
        return Ok(());
    }
    crate::ranges::parse("Networking.nonMasqueradeCIDR", range)?;
    let comment = |text: &str| format!("-m comment --comment \"ip-masq: {text}\"");
    let all = comment(
        "ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom IP-MASQ chain",
    );
    let inside = comment("pod cidr is not subject to MASQUERADE");
    let rest = comment("outbound traffic is subject to MASQUERADE (must be last in chain)");
    let script = format!(
        "#!/bin/bash\n# Built by kOps - do not edit\n\n\
         iptables -w -t nat -N IP-MASQ\n\
         iptables -w -t nat -A POSTROUTING {all} -m addrtype ! --dst-type LOCAL -j IP-MASQ\n\
         iptables -w -t nat -A IP-MASQ -d {range} {inside} -j RETURN\n\
         iptables -w -t nat -A IP-MASQ {rest} -j MASQUERADE\n"
    );
    tasks.text(MASQUERADE, &script, Some("0755"))?;
    let unit = super::system::network_unit("Configure iptables for kubernetes CNI", MASQUERADE);
    tasks.add(Task::Service(Service::running("cni-iptables-setup.service", Some(unit))))
}
