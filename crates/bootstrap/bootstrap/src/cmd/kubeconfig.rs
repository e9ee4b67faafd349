//! The command `kubeconfig`.

use api_config::{
    GoDuration, Kubeconfig,
    kubeconfig::{Cluster, User},
};
use bootstrap_core::{certs::Ca, endpoint};
use clap::Subcommand;
use pki::{Cert, LeafSpec, Subject, Usage, Validity};

use super::{flags::ClusterFlags, global::Subcommands, program::Program};
use crate::{
    Error,
    certs::{AuthorityKey, load_authority},
};

/// The subcommands of `kubeconfig`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Output a kubeconfig file for an additional user
    User(Box<UserArgs>),
}

#[derive(Debug, clap::Args)]
pub(super) struct UserArgs {
    /// The name of user. It will be used as the CN if client certificates are created
    #[arg(long)]
    client_name: String,
    /// The organizations of the client certificate. It will be used as the O if client certificates are created
    #[arg(long)]
    org: Vec<String>,
    /// The token that should be used as the authentication mechanism for this kubeconfig, instead of client
    /// certificates
    #[arg(long)]
    token: Option<String>,
    /// The validity period of the client certificate
    #[arg(long, default_value = "8760h0m0s")]
    validity_period: String,
    #[command(flatten)]
    cluster: ClusterFlags,
}

pub(super) fn run(args: Subcommands<Command>, program: Program) -> Result<(), Error> {
    let (global, Command::User(mut args)) = (args.global, args.command);
    args.cluster = global.add_to(args.cluster);
    let all = args.cluster.init(args.cluster.documents()?, program)?;
    let layout = args.cluster.layout(&all.cluster.certificates_dir);
    let node = args.cluster.node(all, layout, program)?;
    let key_file = node.layout.pki("ca", "key");
    let authority =
        load_authority(&node.layout.certificates, Ca::Kubernetes, node.now())?.ok_or_else(
            || Error::NoAuthority { key: key_file.clone(), phase: Ca::Kubernetes.name() },
        )?;
    let ca_pem: String = authority.bundle.iter().map(Cert::to_pem).collect();
    let user = match &args.token {
        Some(token) => User::with_token(token.as_str()),
        None => {
            let AuthorityKey::Full(ca) = &authority.key else {
                return Err(Error::ExternalCa {
                    missing: "the user's certificate".into(),
                    key: key_file,
                });
            };
            let subject =
                Subject { common_name: args.client_name.clone(), organizations: args.org.clone() };
            let period = args.validity_period.parse::<GoDuration>()?.to_std();
            let validity =
                Validity::starting(node.now(), period).until_at_most(ca.cert().info()?.not_after);
            let spec = LeafSpec { subject, alt_names: Vec::new(), usage: Usage::Client };
            let (cert, key) = ca.issue_new(&spec, node.pki()?.algorithm, validity)?;
            User::with_cert(&cert.to_pem(), &key.to_pem()?)
        }
    };
    let config = &node.config;
    let server = endpoint::stable_url(&config.cluster, &config.init.local_api_endpoint);
    let cluster = Cluster::with_ca(server, &ca_pem);
    print!(
        "{}",
        Kubeconfig::single(&config.cluster.cluster_name, cluster, &args.client_name, user)
            .to_yaml()?
    );
    Ok(())
}
