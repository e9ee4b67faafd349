use std::{path::Path, time::SystemTime};

use bootstrap_core::{
    Layout,
    certs::{Ca, Plan},
    kubeconfigs,
};
use clap::Subcommand;
use pki::{Cert, Key, SigningRequest};
use serde_json::{Value, json};
use time::{OffsetDateTime, macros::format_description};

use super::{Program, Verbosity, flags::ClusterFlags, output::Output};
use crate::{
    Error,
    certs::{KUBECONFIGS, Renewal, renew_due, renew_due_alike, renew_kubeconfig, renew_leaf},
    cluster::new_certificate_key,
    node::Node,
    rotate::{self, Step},
};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    pub(super) verbosity: Verbosity,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check certificates expiration for a Kubernetes cluster
    CheckExpiration {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        flags: Box<ClusterFlags>,
    },
    /// Renew certificates for a Kubernetes cluster
    Renew {
        /// all, due (those with a third of their life left), a certificate such as apiserver, or a kubeconfig file such as admin.conf
        name: String,
        #[command(flatten)]
        flags: Box<ClusterFlags>,
    },
    /// Replace the cluster's certificate authorities and service-account key while it runs, step by step on every node
    RotateCa {
        step: Step,
        /// Decrypts the new authorities that another control plane has uploaded by 'init phase upload-certs --upload-certs'
        #[arg(long)]
        certificate_key: Option<String>,
        /// Go on although a node has not taken the step before
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

pub(super) async fn run(args: Args, program: Program) -> Result<(), Error> {
    match args.command {
        Command::CertificateKey => {
            println!("{}", new_certificate_key()?);
            Ok(())
        }
        Command::CheckExpiration { output, flags } => {
            let node = machine(&flags, program)?;
            let (found, now) = (expirations(&node.layout, &node.pki()?)?, SystemTime::now());
            let told = output.of("CertificateExpirationInfo", vec![object(&found, now)])?;
            print!("{}", told.unwrap_or_else(|| tables(&found, now)));
            Ok(())
        }
        Command::Renew { name, flags } => {
            let given = flags.config.is_some();
            renew(&machine(&flags, program)?, &name, given)
        }
        Command::RotateCa { step, certificate_key, force, flags } => {
            let options = rotate::Options { certificate_key, force };
            let mut node = machine(&flags, program)?;
            for touched in rotate::rotate(&mut node, step, &options).await? {
                if touched.written {
                    println!("{} written", touched.path.display());
                }
            }
            println!("{}", rotate::what_next(step, program.name()));
            Ok(())
        }
        Command::GenerateCsr(flags) => generate_requests(&machine(&flags, program)?),
    }
}

fn machine(flags: &ClusterFlags, program: Program) -> Result<Node, Error> {
    flags.refuse_dry_run("certs")?;
    let all = flags.init(flags.documents()?, program)?;
    let layout = flags.layout(&all.cluster.certificates_dir);
    flags.node(all, layout, program)
}

/// The certificate that a file holds: itself, or the client certificate of a kubeconfig.
fn cert_in(path: &Path) -> Result<Cert, Error> {
    if path.extension().is_some_and(|e| e == "conf") {
        let config = api_config::Kubeconfig::load(path)?;
        let pem = config.current()?.user.cert_pem()?.unwrap_or_default();
        return Ok(Cert::from_pem(&pem)?);
    }
    Ok(pki::read_cert(path)?)
}

/// A certificate of `certs check-expiration`.
struct Row {
    name: String,
    /// Nothing where the file is missing.
    end: Option<SystemTime>,
    /// By which authority it is signed; nothing of an authority itself.
    ca: Option<&'static str>,
    external: bool,
}

/// The certificates and the authorities, each by name.
fn expirations(layout: &Layout, plan: &Plan) -> Result<[Vec<Row>; 2], Error> {
    let external = |ca: Ca| !layout.pki(ca.base(), "key").exists();
    let row = |name: &str, path: std::path::PathBuf, ca: Ca, signed: bool| {
        let end = match path.exists() {
            true => Some(cert_in(&path)?.info()?.not_after),
            false => None,
        };
        let (name, external) = (name.to_owned(), external(ca));
        Ok::<_, Error>(Row { name, end, ca: signed.then(|| ca.name()), external })
    };
    let kubeconfigs =
        KUBECONFIGS.iter().map(|f| row(f, layout.kubeconfig(f), Ca::Kubernetes, true));
    let leaves = plan.leaves.iter().map(|l| row(l.name, layout.pki(l.base, "crt"), l.ca, true));
    let mut certificates: Vec<Row> = kubeconfigs.chain(leaves).collect::<Result<_, _>>()?;
    certificates.sort_by(|a, b| a.name.cmp(&b.name));
    let authorities =
        plan.authorities.iter().map(|ca| row(ca.name(), layout.pki(ca.base(), "crt"), *ca, false));
    Ok([certificates, authorities.collect::<Result<_, _>>()?])
}

/// The tables.
fn tables([certificates, authorities]: &[Vec<Row>; 2], now: SystemTime) -> String {
    let managed = |row: &Row| if row.external { "yes" } else { "no" };
    let mut out = format!(
        "{:<27}{:<25}{:<16}{:<24}EXTERNALLY MANAGED\n",
        "CERTIFICATE", "EXPIRES", "RESIDUAL TIME", "CERTIFICATE AUTHORITY"
    );
    for row in certificates {
        let name = &row.name;
        out.push_str(&match row.end {
            None => format!("!MISSING! {name}\n"),
            Some(end) => format!(
                "{name:<27}{:<25}{:<16}{:<24}{}\n",
                date(end),
                residual(end, now),
                row.ca.unwrap_or_default(),
                managed(row)
            ),
        });
    }
    out.push_str(&format!(
        "\n{:<24}{:<25}{:<16}EXTERNALLY MANAGED\n",
        "CERTIFICATE AUTHORITY", "EXPIRES", "RESIDUAL TIME"
    ));
    for row in authorities {
        let name = &row.name;
        out.push_str(&match row.end {
            None => format!("!MISSING! {name}\n"),
            Some(end) => {
                format!("{name:<24}{:<25}{:<16}{}\n", date(end), residual(end, now), managed(row))
            }
        });
    }
    out
}

/// The same for programs.
fn object([certificates, authorities]: &[Vec<Row>; 2], now: SystemTime) -> Value {
    let one = |row: &Row| {
        let mut one = json!({"name": row.name, "externallyManaged": row.external, "missing": row.end.is_none()});
        if let Some(end) = row.end {
            one["expirationDate"] = json!(pki::written(end));
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

/// As kubectl shows ages: one or two units.
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
        let renewed = match configured {
            true => renew_due(&node.layout, &plan, node.now()),
            false => renew_due_alike(&node.layout, node.now()),
        };
        for touched in renewed {
            println!("{} renewed", touched?.path.display());
        }
        return Ok(());
    }
    let renewal = Renewal {
        now: node.now(),
        period: plan.leaf_validity,
        // Without a configuration the kind of key that is there is the best guess of what is wanted.
        algorithm: configured.then_some(plan.algorithm),
    };
    let plans = node.kubeconfigs(true);
    let (dir, all) = (&node.layout.certificates, name == "all");
    let mut found = false;
    for leaf in plan.leaves.iter().filter(|l| all || l.name == name) {
        found = true;
        if all && !node.layout.pki(leaf.base, "crt").exists() {
            println!("MISSING! {}", leaf.long_name);
            continue;
        }
        renew_leaf(dir, leaf.base, leaf.ca, renewal)?;
        println!("{} renewed", leaf.long_name);
    }
    for plan in plans.iter().filter(|p| KUBECONFIGS.contains(&p.file) && (all || p.file == name)) {
        found = true;
        let path = node.layout.kubeconfig(plan.file);
        if all && !path.exists() {
            println!("MISSING! {}", plan.long_name);
            continue;
        }
        renew_kubeconfig(dir, &path, renewal)?;
        println!("{} renewed", plan.long_name);
    }
    if !found {
        let names: Vec<&str> = plan.leaves.iter().map(|l| l.name).chain(KUBECONFIGS).collect();
        return Err(Error::Usage(format!(
            "{name:?} is no certificate that can be renewed; use all or one of {}",
            names.join(", ")
        )));
    }
    if all {
        println!(
            "\nDone renewing certificates. You must restart the kube-apiserver, kube-controller-manager, kube-scheduler and \
             etcd, so that they can use the new certificates."
        );
    }
    Ok(())
}

/// A key and a request for every certificate of the plan, beside where the certificate will be.
fn generate_requests(node: &Node) -> Result<(), Error> {
    let plan = node.pki()?;
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
    fn what_is_left_is_spoken_as_kubectl_does() {
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
