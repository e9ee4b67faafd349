//! The context of `init`'s phases.

use crate::{node::Node, preflight::Ignored};

/// The context of `init`'s phases.
pub struct Ctx {
    /// The machine and its configuration.
    pub node: Node,
    /// The preflight checks whose errors are warnings.
    pub ignored: Ignored,
    /// `true` to share the certificates with future control planes.
    pub upload_certs: bool,
    /// `true` to hide the token in the printed join command.
    pub skip_token_print: bool,
    /// `true` to hide the certificate key in the output.
    pub skip_certificate_key_print: bool,
}

impl Ctx {
    /// Creates a context that ignores no check and prints everything.
    pub fn new(node: Node) -> Self {
        Self {
            node,
            ignored: Ignored::default(),
            upload_certs: false,
            skip_token_print: false,
            skip_certificate_key_print: false,
        }
    }
}

/// Defines a phase that only reads and writes files.
macro_rules! file_phase {
    ($name:literal, $about:literal, $work:expr) => {
        $crate::phase::Phase {
            name: $name,
            about: $about,
            run: |ctx| {
                let work: fn(
                    &$crate::node::Node,
                ) -> Result<Vec<$crate::FileChange>, $crate::Error> = $work;
                Box::pin(async move { Ok($crate::phase::Outcome::Done(work(&ctx.node)?)) })
            },
        }
    };
}
pub(super) use file_phase;
