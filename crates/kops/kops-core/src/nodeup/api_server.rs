//! The API server: its static Pod, certificates and credentials.

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kops_api::yaml;
use serde_json::{Value, json};

use super::{
    context::{CA, Context, SRV},
    flags::flags,
    pod::{CLUSTER_CRITICAL, Pod, add_manifest, probe},
    task::{Certificate, CertificateUse, Content, File, Task, Tasks, User},
};
use crate::{error::Error, ranges::service_ip};

const DIR: &str = "/srv/kubernetes/kube-apiserver";
const WEBHOOK_CONFIG: &str = "/etc/kubernetes/authn.config";
const IAM: &str = "aws-iam-authenticator";
/// The port of the container that answers health checks.
const HEALTH_PORT: i64 = 3990;
const HEALTHCHECK: &str = "kube-apiserver-healthcheck";

pub(super) fn build(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    if !context.has_api_server {
        return Ok(());
    }
    let own = context.config.at("APIServerConfig");
    let mut config = own.at("KubeAPIServer").clone();
    if config.is_null() {
        config = json!({});
    }
    set_oidc(own, &mut config);
    write_webhook(context, tasks, &mut config)?;
    write_encryption(context, tasks, &mut config)?;
    write_service_account(context, tasks, &mut config)?;
    write_certificates(context, tasks, &mut config)?;
    if !context.control_plane {
        name_etcd(context.cluster(), &mut config);
    }
    // The flags of the old and new name of the field exclude each other.
    if !config.blank("admissionControl") {
        let plugins = config.take_at("admissionControl");
        config.put("enableAdmissionPlugins", plugins);
    }
    add_manifest(tasks, "kube-apiserver", &pod(context, &config)?)?;
    if healthcheck(context).is_some() {
        add_healthcheck(context, tasks)?;
    }
    tasks.log_file("kube-apiserver")
}

/// Sets the flags of OpenID Connect from the cluster's authentication.
fn set_oidc(own: &Value, config: &mut Value) {
    let oidc = own.at("Authentication.oidc");
    for (from, to) in [
        ("clientID", "oidcClientID"),
        ("groupsPrefix", "oidcGroupsPrefix"),
        ("issuerURL", "oidcIssuerURL"),
        ("usernameClaim", "oidcUsernameClaim"),
        ("usernamePrefix", "oidcUsernamePrefix"),
    ] {
        config.put_some(to, oidc.opt_at(from));
    }
    let groups: Vec<_> = oidc.texts("groupsClaims").collect();
    if !groups.is_empty() {
        config.put("oidcGroupsClaim", groups.join(","));
    }
    let claim = |(name, value): (&String, &Value)| Some(format!("{name}={}", value.as_str()?));
    let mut claims: Vec<_> = oidc.pairs("requiredClaims").filter_map(claim).collect();
    claims.sort();
    if !claims.is_empty() {
        config.put("oidcRequiredClaim", claims);
    }
}

/// Writes the configuration of the authentication webhook.
fn write_webhook(
    context: &Context<'_>,
    tasks: &mut Tasks,
    config: &mut Value,
) -> Result<(), Error> {
    let authentication = context.config.at("APIServerConfig.Authentication");
    if authentication.has("kopeio") {
        let what = "authentication.kopeio".to_owned();
        return Err(Error::Unsupported { what, remedy: "use authentication.oidc" });
    }
    if !authentication.has("aws") {
        return Ok(());
    }
    config.put("authenticationTokenWebhookConfigFile", WEBHOOK_CONFIG);
    let authority = STANDARD.encode(context.authorities(CA));
    let text = yaml::to_string(&json!({
        "apiVersion": "", "kind": "",
        "clusters": [{"name": IAM, "cluster": {
            "certificate-authority-data": authority, "server": "https://127.0.0.1:21362/authenticate",
        }}],
        "users": [{"name": "kube-apiserver", "user": {}}],
        "contexts": [{"name": "webhook", "context": {"cluster": IAM, "user": "kube-apiserver"}}],
        "current-context": "webhook",
    }));
    tasks.text(WEBHOOK_CONFIG, &text, Some("600"))?;
    let home = format!("{SRV}/{IAM}");
    tasks.add(Task::User(User {
        name: IAM.to_owned(),
        uid: 10000,
        shell: "/sbin/nologin".to_owned(),
        home: home.clone(),
    }))?;
    let mut certificate = context.certificate(IAM, CertificateUse::Server, IAM);
    certificate.names = ["localhost", "127.0.0.1"].map(str::to_owned).into();
    tasks.add(Task::Certificate(certificate))?;
    for (name, content) in [
        ("cert.pem", Content::Certificate(IAM.to_owned())),
        ("key.pem", Content::Key(IAM.to_owned())),
    ] {
        tasks.add(Task::File(File {
            path: format!("{home}/{name}"),
            content: Some(content),
            mode: Some("600".to_owned()),
            owner: Some(IAM.to_owned()),
            group: Some(IAM.to_owned()),
            ..File::default()
        }))?;
    }
    Ok(())
}

fn write_encryption(
    context: &Context<'_>,
    tasks: &mut Tasks,
    config: &mut Value,
) -> Result<(), Error> {
    if context.config.blank("APIServerConfig.EncryptionConfigSecretHash") {
        return Ok(());
    }
    let secret = context.inputs.secrets.get("encryptionconfig").ok_or(Error::Unknown {
        what: "secret",
        name: "encryptionconfig".to_owned(),
        remedy: "store it by kops create secret encryptionconfig",
    })?;
    let path = format!("{DIR}/encryptionconfig.yaml");
    config.put("encryptionProviderConfig", path.clone());
    tasks.text(&path, secret, Some("600"))
}

/// Writes the keys that sign and check tokens of service accounts.
fn write_service_account(
    context: &Context<'_>,
    tasks: &mut Tasks,
    config: &mut Value,
) -> Result<(), Error> {
    let public = format!("{DIR}/service-account.pub");
    let keys = context.config.text("APIServerConfig.ServiceAccountPublicKeys");
    tasks.text(&public, keys, Some("0600"))?;
    config.push("serviceAccountKeyFile", public);
    if !config.has("serviceAccountSigningKeyFile") {
        config.put("serviceAccountSigningKeyFile", format!("{DIR}/service-account.key"));
        let path = format!("{DIR}/service-account");
        context.keypair_files(tasks, "service-account", &path, None, false)?;
    }
    Ok(())
}

/// Writes the certificates of the server and of its clients of etcd, kubelets and aggregated API servers.
fn write_certificates(
    context: &Context<'_>,
    tasks: &mut Tasks,
    config: &mut Value,
) -> Result<(), Error> {
    for (keyset, name) in
        [("etcd-clients-ca", "etcd-ca"), ("apiserver-aggregator-ca", "apiserver-aggregator-ca")]
    {
        tasks.text(&format!("{DIR}/{name}.crt"), context.authorities(keyset), Some("0644"))?;
    }
    for (name, signer, common_name) in [
        ("etcd-client", "etcd-clients-ca", "kube-apiserver"),
        ("apiserver-aggregator", "apiserver-aggregator-ca", "aggregator"),
        ("kubelet-api", CA, "kubelet-api"),
    ] {
        let certificate = Certificate {
            signer: signer.to_owned(),
            keypair: context.keypair_id(signer).to_owned(),
            ..context.certificate(name, CertificateUse::Client, common_name)
        };
        tasks.certificate_files(certificate, DIR, name, None)?;
    }
    let mut server = context.certificate("master", CertificateUse::Server, "kubernetes-master");
    server.names = server_names(context)?;
    server.with_root = true;
    tasks.certificate_files(server, DIR, "server", None)?;
    config.put_default("clientCAFile", format!("{SRV}/ca.crt"));
    for (field, file) in [
        ("etcdCAFile", "etcd-ca.crt"),
        ("etcdCertFile", "etcd-client.crt"),
        ("etcdKeyFile", "etcd-client.key"),
        ("requestheaderClientCAFile", "apiserver-aggregator-ca.crt"),
        ("proxyClientCertFile", "apiserver-aggregator.crt"),
        ("proxyClientKeyFile", "apiserver-aggregator.key"),
        ("tlsCertFile", "server.crt"),
        ("tlsPrivateKeyFile", "server.key"),
        ("kubeletClientCertificate", "kubelet-api.crt"),
        ("kubeletClientKey", "kubelet-api.key"),
    ] {
        config.put(field, format!("{DIR}/{file}"));
    }
    Ok(())
}

/// Returns the names and addresses of the server's certificate.
fn server_names(context: &Context<'_>) -> Result<Vec<String>, Error> {
    let own = context.config.at("APIServerConfig");
    let mut names: Vec<String> =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned).into();
    names.push(format!("kubernetes.default.svc.{}", own.text("ClusterDNSDomain")));
    names.extend(own.opt_text("API.publicName").map(str::to_owned));
    names.push(context.api_name());
    names.extend(own.texts("API.additionalSANs").map(str::to_owned));
    names.extend(context.config.texts("ApiserverAdditionalIPs").map(str::to_owned));
    let services = context.config.text("Networking.serviceClusterIPRange");
    names.push(service_ip(services, 1)?.to_string());
    names.push("127.0.0.1".to_owned());
    Ok(names)
}

/// Replaces the addresses of etcd on this machine, for API servers on other machines than control planes.
fn name_etcd(cluster: &str, config: &mut Value) {
    for (field, prefix, etcd) in [
        ("etcdServers", "", "main"),
        ("etcdServersOverrides", "/events", "events"),
        ("etcdServersOverrides", "coordination.k8s.io/leases", "leases"),
    ] {
        for server in config.items_mut(field) {
            if let Some(text) = server.as_str().filter(|text| text.starts_with(prefix)) {
                let name = format!("{etcd}.etcd.internal.{cluster}");
                *server = text.replace("127.0.0.1", &name).into();
            }
        }
    }
}

fn pod(context: &Context<'_>, config: &Value) -> Result<Value, Error> {
    let mut all = flags("kube-apiserver", config);
    let issuers = config.texts("additionalServiceAccountIssuers");
    all.extend(issuers.map(|issuer| format!("--service-account-issuer={issuer}")));
    let mut environment = config.items("env").to_vec();
    environment.extend(context.proxy_environment());
    let mut pod = Pod::new(context, "kube-apiserver", config, all)
        .with_resources(config, "150m")
        .with_environment(environment)
        .write("logfile", "/var/log/kube-apiserver.log")
        .read_authorities(context.distribution)
        .read("kubernetesca", &format!("{SRV}/ca.crt"))
        .read("srvkapi", DIR)
        .read("srvsshproxy", "/srv/sshproxy");
    let parent = |path: &str| path.rsplit_once('/').map(|(parent, _)| parent.to_owned());
    let log = config.text("auditLogPath");
    if let Some(directory) = parent(log).filter(|_| log != "-") {
        pod = pod.write("auditlogpathdir", &directory);
    }
    let policy = parent(config.text("auditPolicyFile"));
    if let Some(directory) = policy.filter(|directory| directory != DIR) {
        pod = pod.read("auditconfigdir", &directory);
    }
    if context.config.has("APIServerConfig.Authentication.aws") {
        pod = pod.read("authn-config", WEBHOOK_CONFIG);
    }
    add_ports(context, config, &mut pod.container);
    let mut tree = pod.build(context, CLUSTER_CRITICAL);
    tree.put("metadata.annotations", annotations(context));
    if let Some(path) = healthcheck(context) {
        let sidecar = yaml::parse(path, context.stored(path)?.as_bytes())?;
        for (field, to) in
            [("spec.containers", "spec.containers"), ("spec.volumes", "spec.volumes")]
        {
            sidecar.items(field).iter().for_each(|item| tree.push(to, item.clone()));
        }
    }
    Ok(tree)
}

/// Adds the ports and the probes.
fn add_ports(context: &Context<'_>, config: &Value, container: &mut Value) {
    let insecure = config.int("insecurePort");
    let secure = config.int("securePort");
    let (port, is_tls) = match healthcheck(context) {
        Some(_) => (HEALTH_PORT, false),
        None if insecure != 0 => (insecure, false),
        None if secure != 0 => (secure, true),
        None => (HEALTH_PORT, false),
    };
    for (name, path, delay, timeout, failures, period) in [
        ("livenessProbe", "/livez", 10, 15, 8, 10),
        ("readinessProbe", "/healthz", 0, 15, 3, 1),
        ("startupProbe", "/livez", 10, 300, 30, 10),
    ] {
        let mut probe = probe(path, port, is_tls);
        if delay > 0 {
            probe.put("initialDelaySeconds", delay);
        }
        probe.put("timeoutSeconds", timeout);
        probe.put("failureThreshold", failures);
        probe.put("periodSeconds", period);
        container.put(name, probe);
    }
    for (name, port) in [("https", secure), ("local", insecure)] {
        if name == "https" || port != 0 {
            let port = json!({"name": name, "containerPort": port, "hostPort": port});
            container.push("ports", port);
        }
    }
}

/// Returns the annotations by which dns-controller finds the API servers.
fn annotations(context: &Context<'_>) -> Value {
    let key = "kubectl.kubernetes.io/default-container";
    let mut annotations = json!({key: "kube-apiserver"});
    let api = context.config.at("APIServerConfig.API");
    if context.config.flag("usesNoneDNS") {
        return annotations;
    }
    let mut put = |kind: &str, name: &str| {
        annotations[format!("dns.alpha.kubernetes.io/{kind}")] = name.into();
    };
    if !api.flag("loadBalancer.useForInternalAPI") {
        put("internal", &context.api_name());
    }
    if let Some(name) = api.opt_text("publicName").filter(|_| api.has("dns")) {
        put("external", name);
    }
    annotations
}

/// Returns the store's path of the manifest of the container that answers health checks.
fn healthcheck<'a>(context: &Context<'a>) -> Option<&'a str> {
    let manifests = context.config.items("staticManifests");
    let found = manifests.iter().find(|manifest| manifest.text("key") == HEALTHCHECK);
    found.map(|manifest| manifest.text("path"))
}

/// Adds the credentials of the container that answers health checks.
fn add_healthcheck(context: &Context<'_>, tasks: &mut Tasks) -> Result<(), Error> {
    let directory = format!("/etc/kubernetes/{HEALTHCHECK}/secrets");
    tasks.add(Task::User(User {
        name: HEALTHCHECK.to_owned(),
        uid: 10012,
        shell: "/sbin/nologin".to_owned(),
        home: directory.clone(),
    }))?;
    let certificate = context.certificate(HEALTHCHECK, CertificateUse::Client, HEALTHCHECK);
    tasks.certificate_files(certificate, &directory, "client", Some(HEALTHCHECK))?;
    tasks.add(Task::File(File {
        path: format!("{directory}/ca.crt"),
        content: Some(Content::Authority(HEALTHCHECK.to_owned())),
        mode: Some("0644".to_owned()),
        owner: Some(HEALTHCHECK.to_owned()),
        ..File::default()
    }))
}
