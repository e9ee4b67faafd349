//! The phase `show-join-command` of `init`.

use bootstrap_core::endpoint;

use super::context::Ctx;
use crate::{
    Error,
    node::Node,
    phase::{Outcome, Phase},
};

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: "show-join-command",
    about: "Show how other machines join",
    run: |ctx| {
        Box::pin(async {
            let node = &ctx.node;
            let token = match node.config.init.bootstrap_tokens.first() {
                Some(token) if !ctx.skip_token_print => token.token.clone(),
                _ => "<value withheld>".to_owned(),
            };
            let join = join_command(node, &token)?;
            println!(
                "\nYour Kubernetes control-plane has initialized successfully!\n\n\
                 To start using your cluster, you need to run the following as a regular user:\n\n  \
                 mkdir -p $HOME/.kube\n  sudo cp -i {admin} $HOME/.kube/config\n  \
                 sudo chown $(id -u):$(id -g) $HOME/.kube/config\n\n\
                 Alternatively, if you are the root user, you can run:\n\n  export KUBECONFIG={admin}\n",
                admin = node.layout.kubeconfig("admin.conf").display()
            );
            if ctx.upload_certs {
                let key = if ctx.skip_certificate_key_print {
                    "<value withheld>"
                } else {
                    &node.config.init.certificate_key
                };
                println!(
                    "You can now join any number of control-plane nodes running the following command on each as \
                     root:\n\n  \
                     {join} \\\n\t--control-plane --certificate-key {key}\n"
                );
            }
            println!(
                "Then you can join any number of worker nodes by running the following on each as root:\n\n{join}"
            );
            Ok(Outcome::done())
        })
    },
};

/// Returns the command with which a worker joins.
pub fn join_command(node: &Node, token: &str) -> Result<String, Error> {
    let server =
        endpoint::stable_host_port(&node.config.cluster, &node.config.init.local_api_endpoint);
    let pins = pki::read_certs(&node.layout.pki("ca", "crt"))?
        .iter()
        .map(|ca| Ok(format!(" \\\n\t--discovery-token-ca-cert-hash {}", ca.pin()?)))
        .collect::<Result<String, Error>>()?;
    Ok(format!("{} join {server} --token {token}{pins}", node.program))
}
