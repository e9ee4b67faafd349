use std::{path::Path, time::SystemTime};

use bootstrap_core::{
    Layout,
    certs::{Ca, Plan},
    kubeconfigs,
};
use clap::Subcommand;
use pki::{Cert, Key, SigningRequest};
use time::{OffsetDateTime, macros::format_description};

use super::{Program, flags::ClusterFlags};
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
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check certificates expiration for a Kubernetes cluster
    CheckExpiration(ClusterFlags),
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
    GenerateCsr(ClusterFlags),
    /// Generate certificate keys
    CertificateKey,
}

pub(super) async fn run(args: Args, program: Program) -> Result<(), Error> {
    match args.command {
        Command::CertificateKey => {
            println!("{}", new_certificate_key()?);
            Ok(())
        }
        Command::CheckExpiration(flags) => {
            let node = machine(&flags, program)?;
            print!("{}", expirations(&node.layout, &node.pki()?, SystemTime::now())?);
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

/// The tables of `certs check-expiration`.
fn expirations(layout: &Layout, plan: &Plan, now: SystemTime) -> Result<String, Error> {
    let external = |ca: Ca| if layout.pki(ca.base(), "key").exists() { "no" } else { "yes" };
    let mut rows: Vec<(String, std::path::PathBuf, Option<Ca>)> =
        KUBECONFIGS.iter().map(|f| ((*f).to_owned(), layout.kubeconfig(f), None)).collect();
    rows.extend(
        plan.leaves.iter().map(|l| (l.name.to_owned(), layout.pki(l.base, "crt"), Some(l.ca))),
    );
    rows.sort();
    let mut out = format!(
        "{:<27}{:<25}{:<16}{:<24}EXTERNALLY MANAGED\n",
        "CERTIFICATE", "EXPIRES", "RESIDUAL TIME", "CERTIFICATE AUTHORITY"
    );
    for (name, path, ca) in rows {
        if !path.exists() {
            out.push_str(&format!("!MISSING! {name}\n"));
            continue;
        }
        let end = cert_in(&path)?.info()?.not_after;
        let (ca_name, managed) =
            (ca.map_or("ca", Ca::name), external(ca.unwrap_or(Ca::Kubernetes)));
        out.push_str(&format!(
            "{name:<27}{:<25}{:<16}{ca_name:<24}{managed}\n",
            date(end),
            residual(end, now)
        ));
    }
    out.push_str(&format!(
        "\n{:<24}{:<25}{:<16}EXTERNALLY MANAGED\n",
        "CERTIFICATE AUTHORITY", "EXPIRES", "RESIDUAL TIME"
    ));
    for ca in &plan.authorities {
        let path = layout.pki(ca.base(), "crt");
        if !path.exists() {
            out.push_str(&format!("!MISSING! {}\n", ca.name()));
            continue;
        }
        let end = pki::read_cert(&path)?.info()?.not_after;
        out.push_str(&format!(
            "{:<24}{:<25}{:<16}{}\n",
            ca.name(),
            date(end),
            residual(end, now),
            external(*ca)
        ));
    }
    Ok(out)
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
