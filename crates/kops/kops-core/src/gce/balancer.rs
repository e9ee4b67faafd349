//! Load balancers: addresses, forwarding rules, their targets, and health checks.

use super::family::*;

/// An address: public, or of a subnet.
#[derive(Debug)]
pub(crate) struct Address {
    /// The subnet of an internal address, which several forwarding rules share.
    pub(crate) subnet: Option<Ref>,
}

impl Operations for Address {
    fn kind(&self) -> Kind {
        Kind::Address
    }

    fn refs(&self) -> Vec<&Ref> {
        self.subnet.iter().collect()
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("name", name);
        if let Some(subnet) = &self.subnet {
            block.text("address_type", "INTERNAL").text("purpose", "SHARED_LOADBALANCER_VIP");
            block.value("subnetwork", writer.link(subnet));
        }
        Ok(block)
    }
}

/// The protocol of a health check of machines behind an internal load balancer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Probe {
    Tcp,
    Ssl,
}

/// A health check of a region.
#[derive(Debug)]
pub(crate) struct HealthCheck {
    pub(crate) probe: Probe,
    pub(crate) port: u16,
}

impl Operations for HealthCheck {
    fn kind(&self) -> Kind {
        Kind::HealthCheck
    }

    fn terraform(&self, name: &str, _writer: &mut Writer<'_>) -> Result<Block, Error> {
        let (mut block, mut check) = (Block::default(), Block::default());
        check.int("port", self.port.into());
        let field = match self.probe {
            Probe::Tcp => "tcp_health_check",
            Probe::Ssl => "ssl_health_check",
        };
        block.text("name", name).block(field, check);
        Ok(block)
    }
}

/// A health check of a target pool.
#[derive(Debug)]
pub(crate) struct HttpHealthCheck {
    pub(crate) port: u16,
    pub(crate) path: &'static str,
}

impl Operations for HttpHealthCheck {
    fn kind(&self) -> Kind {
        Kind::HttpHealthCheck
    }

    fn terraform(&self, name: &str, _writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("name", name).int("port", self.port.into()).text("request_path", self.path);
        Ok(block)
    }
}

/// The machines behind an internal load balancer.
#[derive(Debug)]
pub(crate) struct BackendService {
    pub(crate) health_check: Ref,
    pub(crate) groups: Vec<Ref>,
}

impl Operations for BackendService {
    fn kind(&self) -> Kind {
        Kind::BackendService
    }

    fn refs(&self) -> Vec<&Ref> {
        self.groups.iter().chain([&self.health_check]).collect()
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        let mut groups = writer.links(&self.groups);
        groups.sort_by_key(Expr::render);
        let backend = |group: Expr| {
            let mut backend = Block::default();
            backend.text("balancing_mode", "CONNECTION").value("group", group);
            backend
        };
        block.blocks("backend", groups.into_iter().map(backend).collect());
        block.list("health_checks", vec![writer.link(&self.health_check)]);
        block.text("load_balancing_scheme", "INTERNAL").text("name", name).text("protocol", "TCP");
        Ok(block)
    }
}

/// The machines behind a public load balancer.
#[derive(Debug)]
pub(crate) struct TargetPool {
    pub(crate) health_check: Ref,
}

impl Operations for TargetPool {
    fn kind(&self) -> Kind {
        Kind::TargetPool
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.health_check]
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.list("health_checks", vec![writer.link(&self.health_check)]).text("name", name);
        Ok(block)
    }
}

/// The way from a forwarding rule to the machines.
#[derive(Debug)]
pub(crate) enum Traffic {
    /// From outside to a target pool.
    External { pool: Ref },
    /// From the network to a backend service.
    Internal { service: Ref, network: Ref, subnet: Ref },
}

/// A forwarding rule: an address and a port.
#[derive(Debug)]
pub(crate) struct ForwardingRule {
    pub(crate) address: Ref,
    pub(crate) port: u16,
    pub(crate) traffic: Traffic,
    pub(crate) labels: Labels,
}

impl Operations for ForwardingRule {
    fn kind(&self) -> Kind {
        Kind::ForwardingRule
    }

    fn refs(&self) -> Vec<&Ref> {
        let mut refs = vec![&self.address];
        match &self.traffic {
            Traffic::External { pool } => refs.push(pool),
            Traffic::Internal { service, network, subnet } => {
                refs.extend([service, network, subnet]);
            }
        }
        refs
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.value("ip_address", writer.link(&self.address)).text("ip_protocol", "TCP");
        block.text_map("labels", &self.labels).text("name", name);
        let port = self.port;
        match &self.traffic {
            Traffic::External { pool } => {
                block.text("load_balancing_scheme", "EXTERNAL");
                block.text("port_range", &format!("{port}-{port}"));
                block.value("target", writer.link(pool));
            }
            Traffic::Internal { service, network, subnet } => {
                block.text("load_balancing_scheme", "INTERNAL");
                block.list("ports", vec![Expr::text(port.to_string())]);
                block.value("backend_service", writer.link(service));
                block.value("network", writer.link(network));
                block.value("subnetwork", writer.link(subnet));
            }
        }
        Ok(block)
    }
}
