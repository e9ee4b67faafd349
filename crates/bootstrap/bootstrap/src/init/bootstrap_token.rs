//! The phase `bootstrap-token` of `init`: tokens, their rights and the ConfigMap cluster-info.

use std::time::SystemTime;

use api_config::{Kubeconfig, kubeadm::BootstrapToken};
use api_meta::Timestamp;
use bootstrap_core::{
    discovery, endpoint, objects,
    tokens::{self, Token},
};
use serde_json::Value;

use super::context::Ctx;
use crate::phase::{Outcome, Phase};

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: "bootstrap-token",
    about: "Make the tokens by which nodes join, and the rights that they need",
    run: |ctx| {
        Box::pin(async {
            let node = &mut ctx.node;
            let mut objects = Vec::new();
            for entry in &node.config.init.bootstrap_tokens {
                objects.push(token_secret(&entry.token.parse()?, entry, node.now()));
            }
            // This ConfigMap is public. It contains no user, only the server and its CA.
            let ca = std::fs::read_to_string(node.layout.pki("ca", "crt"))
                .map_err(crate::error::io("read", &node.layout.pki("ca", "crt")))?;
            let server =
                endpoint::stable_url(&node.config.cluster, &node.config.init.local_api_endpoint);
            let info: Kubeconfig = discovery::cluster_info_kubeconfig(&server, &ca);
            objects.push(discovery::cluster_info(&info.to_yaml()?));
            objects.extend(objects::token_rights());
            node.apply_all(objects).await?;
            Ok(Outcome::done())
        })
    },
};

/// Returns the Secret of a token that expires relative to `now`.
pub fn token_secret(token: &Token, config: &BootstrapToken, now: SystemTime) -> Value {
    tokens::secret(token, config, expiration(config, now).as_deref())
}

/// Returns the expiration of a token; `None` if its TTL is zero.
pub fn expiration(config: &BootstrapToken, now: SystemTime) -> Option<String> {
    if let Some(expires) = &config.expires {
        return Some(expires.clone());
    }
    let ttl = config.ttl.filter(|ttl| !ttl.is_zero())?;
    Some(Timestamp::from(now).plus(ttl.to_std()).to_string())
}
