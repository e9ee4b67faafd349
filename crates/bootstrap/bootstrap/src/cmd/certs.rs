//! The command `certs`.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use bootstrap_core::{
    Layout,
    certs::{Ca, Plan},
    config::Documents,
    kubeconfigs, objects,
};
use clap::Subcommand;
use client::Resource;
use pki::{Cert, Key, SigningRequest};
use serde_json::{Value, json};
use time::{OffsetDateTime, macros::format_description};
use tokio::time::timeout;

use super::{
    flags::ClusterFlags, global::Subcommands, output::Output, program::Program, table::table,
};
use crate::{
    Error, FlagError,
    certs::{
        KUBECONFIGS, Renewal, renew_due, renew_due_with_same_parameters, renew_kubeconfig,
        renew_leaf,
    },
    cluster::{self, new_certificate_key},
    external_ca::is_external,
    node::Node,
    rotate::{self, Step},
};

/// The deadline for reading the configuration from the cluster.
const PATIENCE: Duration = Duration::from_secs(10);

/// The subcommands of `certs`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check certificates expiration for a Kubernetes cluster
    CheckExpiration {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        reach: ClusterAccess,
        #[command(flatten)]
        flags: Box<ClusterFlags>,
    },
    /// Renew certificates for a Kubernetes cluster
    Renew {
        /// all, due (those with a third of their life left), a certificate such as apiserver, or a kubeconfig file such
        /// as admin.conf
        name: String,
        #[command(flatten)]
        reach: ClusterAccess,
        #[command(flatten)]
        flags: Box<ClusterFlags>,
    },
    /// Replace the cluster's certificate authorities and service-account key while it runs, step by step on every node
    RotateCa {
        step: Step,
        /// The key for the new authorities that another control plane has uploaded with 'init phase upload-certs
        /// --upload-certs'
        #[arg(long)]
        certificate_key: Option<String>,
        /// Continue even if a node has not completed the previous step
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        flags: Box<ClusterFlags>,
    },
    /// Generate keys and certificate signing requests
    GenerateCsr(Box<ClusterFlags>),
    /// Generate certificate keys
    CertificateKey,
}

/// The access to a cluster whose configuration is read if no file is given.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterAccess {
    /// The kubeconfig file to use when talking to the cluster
    #[arg(long, default_value = "/etc/kubernetes/admin.conf")]
    kubeconfig: PathBuf,
}

pub(super) async fn run(args: Subcommands<Command>, program: Program) -> Result<(), Error> {
    let global = args.global;
    match args.command {
        Command::CertificateKey => {
            println!("{}", new_certificate_key()?);
            Ok(())
        }
        Command::CheckExpiration { output, reach, flags } => {
            let flags = global.add_to(*flags);
            let (documents, _) = configured(&flags, &global.path(&reach.kubeconfig)).await?;
            let node = machine(&flags, documents, program)?;
            let (certificates, now) = (expirations(&node.layout, &node.pki()?)?, rt::now());
            let printed =
                output.of("CertificateExpirationInfo", vec![object(&certificates, now)])?;
            print!("{}", printed.unwrap_or_else(|| tables(&certificates, now)));
            Ok(())
        }
        Command::Renew { name, reach, flags } => {
            let flags = global.add_to(*flags);
            let (documents, is_configured) =
                configured(&flags, &global.path(&reach.kubeconfig)).await?;
            renew(&machine(&flags, documents, program)?, &name, is_configured)
        }
        Command::RotateCa { step, certificate_key, force, flags } => {
            let options = rotate::Options { certificate_key, force };
            let flags = global.add_to(*flags);
            let mut node = machine(&flags, flags.documents()?, program)?;
            for touched in rotate::rotate(&mut node, step, &options).await? {
                if touched.written {
                    println!("{} written", touched.path.display());
                }
            }
            println!("{}", rotate::next_steps(step, program.name()));
            Ok(())
        }
        Command::GenerateCsr(flags) => {
            let flags = global.add_to(*flags);
            generate_requests(&machine(&flags, flags.documents()?, program)?)
        }
    }
}

/// Returns the configuration from the file, or else from the cluster. The flag is `false` if it is only the default.
async fn configured(flags: &ClusterFlags, kubeconfig: &Path) -> Result<(Documents, bool), Error> {
    let mut documents = flags.documents()?;
    if flags.config.is_some() {
        return Ok((documents, true));
    }
    // Certificates are managed even if no API server runs any more.
    if !kubeconfig.exists() {
        return Ok((documents, false));
    }
    let client = cluster::client(kubeconfig)?;
    let maps = Resource::CONFIG_MAPS;
    let request = cluster::get(&client, &maps, "kube-system", "kubeadm-config");
    let cause = match timeout(PATIENCE, request).await {
        Ok(Ok(Some(map))) => {
            let mut cluster = objects::read_kubeadm_config(&map)?;
            if let Some(directory) = &flags.cert_dir {
                cluster.certificates_dir.clone_from(directory);
            }
            documents.cluster = Some(cluster);
            return Ok((documents, true));
        }
        Ok(Ok(None)) => "it has no ConfigMap kubeadm-config".to_owned(),
        Ok(Err(e)) => e.to_string(),
        Err(_) => format!("no answer within {}s", PATIENCE.as_secs()),
    };
    eprintln!("[certs] The cluster's configuration cannot be read: {cause}");
    eprintln!("[certs] Falling back to default configuration");
    Ok((documents, false))
}

fn machine(flags: &ClusterFlags, documents: Documents, program: Program) -> Result<Node, Error> {
    let all = flags.init(documents, program)?;
    let layout = flags.layout(&all.cluster.certificates_dir);
    flags.node(all, layout, program)
}

/// Reads the certificate in a file: itself, or the client certificate of a kubeconfig.
fn cert_in(path: &Path) -> Result<Cert, Error> {
    if path.extension().is_some_and(|e| e == "conf") {
        let config = api_config::Kubeconfig::load(path)?;
        let pem = config.current()?.user.cert_pem()?.unwrap_or_default();
        return Ok(Cert::from_pem(&pem)?);
    }
    Ok(pki::read_cert(path)?)
}

/// A row of `certs check-expiration`.
struct Row {
    name: String,
    /// The expiration; `None` if the file is missing.
    end: Option<SystemTime>,
    /// The signing authority; `None` for an authority itself.
    ca: Option<&'static str>,
    external: bool,
}

/// Returns the certificates and the authorities, each sorted by name.
fn expirations(layout: &Layout, plan: &Plan) -> Result<[Vec<Row>; 2], Error> {
    let row = |name: &str, path: std::path::PathBuf, ca: Ca, signed: bool| {
        let end = if path.exists() { Some(cert_in(&path)?.info()?.not_after) } else { None };
        let (name, external) = (name.to_owned(), is_external(layout, ca));
        Ok::<_, Error>(Row { name, end, ca: signed.then(|| ca.name()), external })
    };
    let kubeconfigs =
        KUBECONFIGS.iter().map(|f| row(f, layout.kubeconfig(f), Ca::Kubernetes, true));
    let leaves = plan.leaves.iter().map(|l| row(l.name, layout.pki(l.base, "crt"), l.ca, true));
    let mut certificates: Vec<Row> = kubeconfigs.chain(leaves).collect::<Result<_, _>>()?;
    certificates.sort_by(|a, b| a.name.cmp(&b.name));
    let authorities =
        plan.authorities.iter().map(|ca| row(ca.name(), layout.pki(ca.base(), "crt"), *ca, false));
    let mut authorities: Vec<Row> = authorities.collect::<Result<_, _>>()?;
    authorities.sort_by(|a, b| a.name.cmp(&b.name));
    Ok([certificates, authorities])
}

/// Renders the tables as text.
fn tables([certificates, authorities]: &[Vec<Row>; 2], now: SystemTime) -> String {
    let line = |row: &Row| {
        let Some(end) = row.end else { return vec![format!("!MISSING! {}", row.name)] };
        let managed = if row.external { "yes" } else { "no" };
        let mut cells = vec![row.name.clone(), date(end), residual(end, now)];
        cells.extend(row.ca.map(str::to_owned));
        cells.push(managed.to_owned());
        cells
    };
    let authority = "CERTIFICATE AUTHORITY";
    let head = ["CERTIFICATE", "EXPIRES", "RESIDUAL TIME", authority, "EXTERNALLY MANAGED"];
    let first = table(&head, certificates.iter().map(line));
    let head = [authority, "EXPIRES", "RESIDUAL TIME", "EXTERNALLY MANAGED"];
    first + "\n" + &table(&head, authorities.iter().map(line))
}

/// Builds the object for structured output.
fn object([certificates, authorities]: &[Vec<Row>; 2], now: SystemTime) -> Value {
    let one = |row: &Row| {
        let mut one = json!({"name": row.name, "externallyManaged": row.external, "missing": row.end.is_none()});
        if let Some(end) = row.end {
            one["expirationDate"] = json!(pki::format_time(end));
            let left = end.duration_since(now).map_or(0, |left| left.as_secs());
            one["residualTime"] = json!(left);
        }
        if let Some(ca) = row.ca {
            one["caName"] = json!(ca);
        }
        one
    };
    let all = |rows: &[Row]| rows.iter().map(one).collect::<Vec<_>>();
    json!({"certificates": all(certificates), "certificateAuthorities": all(authorities)})
}

fn date(at: SystemTime) -> String {
    let form = format_description!("[month repr:short] [day], [year] [hour]:[minute] UTC");
    OffsetDateTime::from(at).format(&form).unwrap_or_default()
}

/// Formats a duration like kubectl's ages, with one unit.
fn residual(end: SystemTime, now: SystemTime) -> String {
    let Ok(left) = end.duration_since(now) else { return "<invalid>".to_owned() };
    let hours = left.as_secs() / 3600;
    match hours / 24 {
        0 if hours == 0 => format!("{}m", left.as_secs() / 60),
        0..=2 => format!("{hours}h"),
        days if days < 730 => format!("{days}d"),
        days => format!("{}y", days / 365),
    }
}

fn renew(node: &Node, name: &str, configured: bool) -> Result<(), Error> {
    let plan = node.pki()?;
    if name == "due" {
        let renewed = if configured {
            renew_due(&node.layout, &plan, node.now())
        } else {
            renew_due_with_same_parameters(&node.layout, node.now())
        };
        for touched in renewed {
            println!("{} renewed", touched?.path.display());
        }
        return Ok(());
    }
    let renewal = Renewal {
        now: node.now(),
        period: plan.leaf_validity,
        // Without a configuration, the kind of the existing key is kept.
        algorithm: configured.then_some(plan.algorithm),
    };
    let plans = node.kubeconfigs(true);
    let (dir, all) = (&node.layout.certificates, name == "all");
    let mut exists = false;
    let mut tell = |long_name: &str, path: &Path, ca: Ca, work: &dyn Fn() -> Result<(), Error>| {
        exists = true;
        if all && !path.exists() {
            println!("MISSING! {long_name}");
        } else if is_external(&node.layout, ca) {
            println!("Detected external {}, {long_name} can't be renewed", ca.base());
        } else {
            work()?;
            println!("{long_name} renewed");
        }
        Ok::<_, Error>(())
    };
    for leaf in plan.leaves.iter().filter(|l| all || l.name == name) {
        let path = node.layout.pki(leaf.base, "crt");
        let work = || renew_leaf(dir, leaf.base, leaf.ca, renewal).map(drop);
        tell(leaf.long_name, &path, leaf.ca, &work)?;
    }
    for plan in plans.iter().filter(|p| KUBECONFIGS.contains(&p.file) && (all || p.file == name)) {
        let path = node.layout.kubeconfig(plan.file);
        let work = || renew_kubeconfig(dir, &path, renewal).map(drop);
        tell(plan.long_name, &path, Ca::Kubernetes, &work)?;
    }
    if !exists {
        let names: Vec<&str> = plan.leaves.iter().map(|l| l.name).chain(KUBECONFIGS).collect();
        return Err(
            FlagError::Certificate { name: name.to_owned(), names: names.join(", ") }.into()
        );
    }
    if all {
        println!(
            "\nDone renewing certificates. You must restart the kube-apiserver, kube-controller-manager, \
             kube-scheduler and etcd, so that they can use the new certificates."
        );
    }
    Ok(())
}

/// Writes a key and a signing request for every certificate of the plan, next to the certificate's path.
fn generate_requests(node: &Node) -> Result<(), Error> {
    let plan = node.pki()?;
    let leaves =
        plan.leaves.iter().flat_map(|l| ["key", "csr"].map(|e| node.layout.pki(l.base, e)));
    let files = node.kubeconfigs(true).into_iter().flat_map(|plan| {
        [plan.file.to_owned(), format!("{}.csr", plan.file)].map(|f| node.layout.kubeconfig(&f))
    });
    // Overwriting a key in use would lose it.
    if let Some(there) = leaves.chain(files).find(|path| path.exists()) {
        return Err(Error::KeyExists(there));
    }
    for leaf in &plan.leaves {
        let key = Key::generate(plan.algorithm)?;
        let request = SigningRequest::create(&leaf.spec.subject, &leaf.spec.alt_names, &key)?;
        pki::write_key(&node.layout.pki(leaf.base, "key"), &key)?;
        pki::write_file(
            &node.layout.pki(leaf.base, "csr"),
            request.to_pem().as_bytes(),
            pki::KEY_MODE,
        )?;
    }
    for plan_of in node.kubeconfigs(true) {
        let key = Key::generate(plan.algorithm)?;
        let request = SigningRequest::create(&plan_of.user, &[], &key)?;
        let path = node.layout.kubeconfig(plan_of.file);
        kubeconfig_without_cert(&plan_of, &key)?.write(&path)?;
        pki::write_file(
            &node.layout.kubeconfig(&format!("{}.csr", plan_of.file)),
            request.to_pem().as_bytes(),
            pki::KEY_MODE,
        )?;
    }
    println!(
        "keys and requests are in {} and {}",
        node.layout.certificates.display(),
        node.layout.kubernetes.display()
    );
    Ok(())
}

fn kubeconfig_without_cert(
    plan: &kubeconfigs::Plan,
    key: &Key,
) -> Result<api_config::Kubeconfig, Error> {
    use api_config::kubeconfig::{Cluster, User};
    let cluster = Cluster { server: plan.server.clone(), ..Cluster::default() };
    let user =
        User { client_certificate_data: String::new(), ..User::with_cert("", &key.to_pem()?) };
    Ok(api_config::Kubeconfig::single(&plan.cluster_name, cluster, &plan.user.common_name, user))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn formats_residual_time_like_kubectl() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        for (seconds, text) in [
            (90, "1m"),
            (7200, "2h"),
            (60 * 3600, "60h"),
            (364 * 86_400, "364d"),
            (3650 * 86_400, "10y"),
        ] {
            assert_eq!(residual(now + Duration::from_secs(seconds), now), text);
        }
        assert_eq!(residual(now - Duration::from_secs(1), now), "<invalid>");
        assert_eq!(date(now), "Sep 21, 2026 14:13 UTC");
    }
}
