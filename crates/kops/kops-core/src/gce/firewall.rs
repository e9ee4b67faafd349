//! Firewall rules.

use super::family::*;

/// A protocol, and its port or ports.
#[derive(Clone, Debug)]
pub(crate) struct Allowed {
    pub(crate) protocol: &'static str,
    /// A port or a range; `None` for all ports.
    pub(crate) ports: Option<String>,
}

impl Allowed {
    /// Returns a protocol with all ports.
    pub(crate) fn all(protocol: &'static str) -> Self {
        Self { protocol, ports: None }
    }

    /// Returns a protocol with one port.
    pub(crate) fn port(protocol: &'static str, port: u16) -> Self {
        Self { protocol, ports: Some(port.to_string()) }
    }
}

/// A rule that allows traffic to machines with a tag. Its source is a list of ranges, or of tags.
#[derive(Clone, Debug)]
pub(crate) struct FirewallRule {
    pub(crate) network: Ref,
    pub(crate) allowed: Vec<Allowed>,
    pub(crate) source_ranges: Vec<String>,
    pub(crate) source_tags: Vec<String>,
    pub(crate) target_tags: Vec<String>,
    pub(crate) disabled: bool,
}

impl Operations for FirewallRule {
    fn kind(&self) -> Kind {
        Kind::FirewallRule
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.network]
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        let allow = |one: &Allowed| {
            let mut allow = Block::default();
            allow.text("protocol", one.protocol);
            allow.list("ports", one.ports.iter().map(Expr::text).collect());
            allow
        };
        block.blocks("allow", self.allowed.iter().map(allow).collect());
        block.flag("disabled", self.disabled).text("name", name);
        block.value("network", writer.link(&self.network));
        for (field, texts) in [
            ("source_ranges", &self.source_ranges),
            ("source_tags", &self.source_tags),
            ("target_tags", &self.target_tags),
        ] {
            block.list(field, texts.iter().map(Expr::text).collect());
        }
        Ok(block)
    }
}
