//! Runs `kops export kubeconfig` and `kops helpers kubectl-auth`: the access of administrators to a cluster.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use api_config::{
    GoDuration, Kubeconfig,
    kubeconfig::{
        self, Cluster as Server, Context, Exec, NamedCluster, NamedContext, NamedUser, User,
    },
};
use api_meta::{Timestamp, Tree as _};
use kops_api::Object;
use kops_core::{CloudName, Cluster as _};
use kops_local::{administrator, server_url};
use kops_store::{Keyset, Registry};
use pki::{Cert, Key, KeyAlgorithm, LeafSpec, Usage, Validity};
use serde_json::json;

use crate::{
    cluster_update::ClusterUpdate,
    environment::CommandEnvironment,
    error::Error,
    flags::{ExportKubeconfig, KubectlAuth, UpdateCluster},
    get,
};

/// The exported access to a cluster.
#[derive(Default)]
struct Access<'a> {
    /// The file; `None` for kubectl's own.
    path: Option<&'a Path>,
    /// The lifetime of a new administrator's certificate.
    admin: Option<Duration>,
    /// An existing user of the file.
    user: Option<&'a str>,
    /// The URL of the API server, instead of the one of the specification.
    server: Option<&'a str>,
    /// `true` to use the API's internal name.
    internal: bool,
    /// The state store that kubectl's plugin reads; `None` without the plugin.
    plugin_store: Option<&'a str>,
}

/// Runs `export kubeconfig` for a cluster or, with --all, for all of them.
pub(crate) fn export(
    registry: &Registry,
    command: &ExportKubeconfig,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    if command.admin.is_some() && command.user.is_some() {
        return Err(Error::FlagPair { first: "--admin", second: "--user" });
    }
    if command.all && command.cluster.is_some() {
        return Err(Error::FlagPair { first: "--all flag", second: "positional arguments" });
    }
    let clusters =
        if command.all { registry.clusters()? } else { vec![get::find_cluster(registry, name)?] };
    let access = Access {
        path: command.kubeconfig.as_deref(),
        admin: command.admin.map(GoDuration::to_std),
        user: command.user.as_deref(),
        server: command.api_server.as_deref(),
        internal: command.internal,
        plugin_store: command.auth_plugin.then(|| registry.url()),
    };
    clusters.iter().try_for_each(|cluster| export_cluster(registry, cluster, &access, context))
}

/// Adds the context of an updated cluster to the user's kubeconfig, and makes it the current one. `period` is the
/// lifetime of a new administrator's certificate, if the user has not chosen another user.
pub(crate) fn write_updated(
    update: ClusterUpdate<'_>,
    period: Option<Duration>,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let ClusterUpdate { registry, command, cluster } = update;
    let server = command.api.server(cluster.name(), context)?;
    let access = Access {
        admin: period.filter(|_| command.user.is_none()),
        user: command.user.as_deref(),
        server: server.as_deref(),
        internal: command.internal,
        ..Access::default()
    };
    export_cluster(registry, cluster, &access, context)
}

/// Rejects flags of an update that contradict each other or name a missing user, before anything is changed.
pub(crate) fn check_update(
    command: &UpdateCluster,
    cluster: &str,
    context: &CommandEnvironment<'_>,
) -> Result<(), Error> {
    if command.admin.is_some() && command.user.is_some() {
        return Err(Error::FlagPair { first: "--admin", second: "--user" });
    }
    for (flag, is_given) in [
        ("--admin", command.admin.is_some()),
        ("--user", command.user.is_some()),
        ("--internal", command.internal),
    ] {
        if is_given && command.create_kube_config == Some(false) {
            return Err(Error::Flag { flag, problem: "needs --create-kube-config" });
        }
    }
    if let Some(user) = &command.user {
        check_user(&kubeconfig_path(context.environment), user)?;
    }
    command.api.server(cluster, context).map(drop)
}

/// Returns the access of a new administrator to a cluster whose machines are not of cloud local. `server` is the URL of
/// the API server, if it is not the one of the specification.
pub(crate) fn remote_access(
    registry: &Registry,
    cluster: &Object,
    server: Option<&str>,
    period: Duration,
    context: &CommandEnvironment<'_>,
) -> Result<Kubeconfig, Error> {
    let name = cluster.name();
    let authorities = authorities(registry, name)?;
    let url = find_server(registry, cluster, &Access { server, ..Access::default() })?;
    let mut server = Server::with_ca(url, &authorities.certificates());
    server.tls_server_name = internal_name(name);
    let (cert, key) = issue(&authorities, period, context)?;
    let user = User::with_cert(&cert.to_pem(), &key.to_pem()?);
    Ok(Kubeconfig::single(name, server, name, user))
}

/// Rejects a user that the kubeconfig does not have.
fn check_user(path: &Path, user: &str) -> Result<(), Error> {
    let file = if path.exists() { Kubeconfig::load(path)? } else { Kubeconfig::default() };
    if file.users.iter().any(|one| one.name == user) {
        return Ok(());
    }
    Err(Error::MissingUser(user.to_owned()))
}

fn export_cluster(
    registry: &Registry,
    cluster: &Object,
    access: &Access<'_>,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let name = cluster.name();
    let path = match access.path {
        Some(path) => path.to_owned(),
        None => kubeconfig_path(context.environment),
    };
    if let Some(user) = access.user {
        check_user(&path, user)?;
    }
    let authorities = authorities(registry, name)?;
    let mut server =
        Server::with_ca(find_server(registry, cluster, access)?, &authorities.certificates());
    server.tls_server_name = internal_name(name);
    let user = match access {
        Access { user: Some(_), .. } => None,
        Access { plugin_store: Some(store), .. } => Some(plugin_user(name, store)),
        Access { admin: Some(period), .. } => {
            let (cert, key) = issue(&authorities, *period, context)?;
            Some(User::with_cert(&cert.to_pem(), &key.to_pem()?))
        }
        _ => None,
    };
    kubeconfig::update_file(&path, |config| add_context(config, name, server, user, access.user))?;
    writeln!(context.out, "kOps has set your kubectl context to {name}")?;
    Ok(())
}

/// Adds a cluster, its context and perhaps a user to a kubeconfig. Without a user, the context keeps the one it has.
fn add_context(
    config: &mut Kubeconfig,
    name: &str,
    cluster: Server,
    new: Option<User>,
    existing: Option<&str>,
) {
    let old = config.contexts.iter().find(|one| one.name == name);
    let old = old.map(|one| one.context.clone()).unwrap_or_default();
    let user = existing.or(new.is_some().then_some(name)).unwrap_or(&old.user).to_owned();
    let context = Context { cluster: name.to_owned(), user, ..old };
    let name = name.to_owned();
    config.merge(Kubeconfig {
        clusters: vec![NamedCluster { name: name.clone(), cluster }],
        contexts: vec![NamedContext { name: name.clone(), context }],
        users: new.into_iter().map(|user| NamedUser { name: name.clone(), user }).collect(),
        current_context: name,
        ..Kubeconfig::default()
    });
}

/// Returns the URL of the API server.
fn find_server(
    registry: &Registry,
    cluster: &Object,
    access: &Access<'_>,
) -> Result<String, Error> {
    let name = cluster.name();
    let local = cluster.cloud() == CloudName::Local;
    if let Some(server) = access.server {
        return Ok(server.to_owned());
    }
    if access.internal {
        let port = if local { format!(":{}", kops_node::API_PORT) } else { String::new() };
        return Ok(format!("https://{}{port}", internal_name(name)));
    }
    if local {
        return Ok(server_url(registry, name)?);
    }
    if cluster.spec.has("api.loadBalancer") {
        return Err(Error::LoadBalancer(name.to_owned()));
    }
    Ok(match cluster.spec.text("api.publicName") {
        "" => format!("https://api.{name}"),
        public if public.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) => {
            format!("https://[{public}]")
        }
        public => format!("https://{public}"),
    })
}

/// Returns the name that certificates of a cluster's API servers contain.
pub(crate) fn internal_name(cluster: &str) -> String {
    format!("api.internal.{cluster}")
}

/// Returns the kubeconfig that kubectl would change.
pub(crate) fn kubeconfig_path(environment: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    let home = environment("HOME").unwrap_or_else(|| "/root".to_owned());
    let named = environment("KUBECONFIG");
    kubeconfig::file_to_change(named.as_deref(), Path::new(&home))
}

/// Returns the keyset that signs clients' certificates.
fn authorities(registry: &Registry, cluster: &str) -> Result<Keyset, Error> {
    let keyset = Keyset::read(registry, cluster, "kubernetes-ca")?;
    keyset.ok_or_else(|| {
        let problem = "has no keys yet; run kops update cluster --yes";
        kops_store::Error::object("cluster", cluster, problem).into()
    })
}

/// Issues an administrator's certificate.
fn issue(
    authorities: &Keyset,
    period: Duration,
    context: &CommandEnvironment<'_>,
) -> Result<(Cert, Key), Error> {
    let spec = LeafSpec { subject: administrator(), alt_names: Vec::new(), usage: Usage::Client };
    let validity = Validity::starting(context.now, period);
    Ok(authorities.authority()?.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?)
}

/// Returns a user for whom kubectl runs `kops helpers kubectl-auth`.
fn plugin_user(cluster: &str, store: &str) -> User {
    let args = ["helpers", "kubectl-auth"].map(str::to_owned);
    let flags = [format!("--cluster={cluster}"), format!("--state={store}")];
    let exec = Exec {
        api_version: "client.authentication.k8s.io/v1beta1".to_owned(),
        command: "kops".to_owned(),
        args: args.into_iter().chain(flags).collect(),
        ..Exec::default()
    };
    User { exec: Some(exec), ..User::default() }
}

/// Prints a new administrator's certificate for kubectl.
pub(crate) fn authenticate(
    registry: &Registry,
    command: &KubectlAuth,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, &command.cluster)?;
    let period = command.lifetime.to_std();
    let (cert, key) = issue(&authorities(registry, cluster.name())?, period, context)?;
    let end = Timestamp::from(context.now + period).to_seconds().to_string();
    let credential = json!({
        "apiVersion": format!("client.authentication.k8s.io/{}", command.api_version),
        "kind": "ExecCredential",
        "status": {
            "clientCertificateData": cert.to_pem(), "clientKeyData": key.to_pem()?.as_str(),
            "expirationTimestamp": end,
        },
    });
    writeln!(context.out, "{credential}")?;
    Ok(())
}

/// Returns the lifetime of upstream's administrators' certificates.
pub(crate) fn default_lifetime() -> Duration {
    GoDuration::from_secs(18 * 3600).to_std()
}
