//! The phase `upload-certs` of `init`.

use std::time::Duration;

use api_config::kubeadm::BootstrapToken;
use bootstrap_core::tokens::Token;

use super::{bootstrap_token::token_secret, context::Ctx};
use crate::{
    cluster,
    phase::{Outcome, Phase},
};

/// The lifetime of the shared certificates.
const LIFE: Duration = Duration::from_secs(2 * 3600);

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: "upload-certs",
    about: "Share the certificates with control planes to come",
    run: |ctx| {
        Box::pin(async {
            if !ctx.upload_certs {
                return Ok(Outcome::skipped("see --upload-certs"));
            }
            let init = &mut ctx.node.config.init;
            if init.certificate_key.is_empty() {
                init.certificate_key = cluster::new_certificate_key()?;
            }
            let key = init.certificate_key.clone();
            if ctx.node.dry_run {
                return Ok(Outcome::skipped("dry run"));
            }
            // The token grants no access. It owns the Secret, which is deleted when the token expires.
            let config = BootstrapToken {
                description: "Proxy for managing TTL for the kubeadm-certs secret".to_owned(),
                ttl: Some(api_config::GoDuration::from_secs(LIFE.as_secs() as i64)),
                ..BootstrapToken::default()
            };
            let token = Token::generate(|below| rt::random_in(0..below));
            let secret = token_secret(&token, &config, ctx.node.now());
            let client = ctx.node.client().await?;
            let (dir, etcd) = (&ctx.node.layout.certificates, &ctx.node.config.cluster.etcd);
            cluster::upload_certs(&client, dir, etcd, &key, &secret).await?;
            if !ctx.skip_certificate_key_print {
                println!("[upload-certs] Using certificate key:\n{key}");
            }
            Ok(Outcome::done())
        })
    },
};
