//! The phase `preflight` of `init`.

use super::context::Ctx;
use crate::{
    phase::{Outcome, PREFLIGHT, Phase},
    preflight,
};

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: PREFLIGHT,
    about: "Check whether this machine can run a control plane",
    run: |ctx| {
        Box::pin(async {
            let node = &ctx.node;
            preflight::check(preflight::for_init(node), &ctx.ignored)?;
            preflight::check_runtime(node, &ctx.ignored).await?;
            preflight::check_external_etcd(node, &ctx.ignored).await?;
            preflight::ensure_images(node, &ctx.ignored).await?;
            Ok(Outcome::done())
        })
    },
};
