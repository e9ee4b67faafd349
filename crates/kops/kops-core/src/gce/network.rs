//! Networks, subnets, and the routers that translate addresses of machines without public ones.

use super::family::*;

/// A network with custom subnets.
#[derive(Debug)]
pub(crate) struct Network;

impl Operations for Network {
    fn kind(&self) -> Kind {
        Kind::Network
    }

    fn terraform(&self, name: &str, _writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.flag("auto_create_subnetworks", false).text("name", name);
        Ok(block)
    }
}

/// A subnet, which spans a region.
#[derive(Debug)]
pub(crate) struct Subnetwork {
    pub(crate) network: Ref,
    pub(crate) region: String,
    pub(crate) cidr: String,
    /// The secondary ranges by name, for the addresses of Pods and Services.
    pub(crate) secondary_ranges: Labels,
}

impl Operations for Subnetwork {
    fn kind(&self) -> Kind {
        Kind::Subnetwork
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.network]
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("ip_cidr_range", &self.cidr).text("name", name).text("region", &self.region);
        block.value("network", writer.link(&self.network)).text("stack_type", "IPV4_ONLY");
        let range = |(name, cidr): (&String, &String)| {
            let mut range = Block::default();
            range.text("range_name", name).text("ip_cidr_range", cidr);
            range
        };
        let ranges = self.secondary_ranges.iter().map(range).collect();
        block.blocks("secondary_ip_range", ranges);
        Ok(block)
    }
}

/// A router.
#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) network: Ref,
}

impl Operations for Router {
    fn kind(&self) -> Kind {
        Kind::Router
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.network]
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("name", name).value("network", writer.link(&self.network));
        Ok(block)
    }
}

/// The address translation of a router for some subnets.
#[derive(Debug)]
pub(crate) struct RouterNat {
    pub(crate) router: Ref,
    pub(crate) region: String,
    pub(crate) subnets: Vec<Ref>,
}

impl Operations for RouterNat {
    fn kind(&self) -> Kind {
        Kind::RouterNat
    }

    fn refs(&self) -> Vec<&Ref> {
        self.subnets.iter().chain([&self.router]).collect()
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("name", name).text("region", &self.region);
        block.value("router", writer.link(&self.router));
        block.text("nat_ip_allocate_option", "AUTO_ONLY");
        block.text("source_subnetwork_ip_ranges_to_nat", "LIST_OF_SUBNETWORKS");
        let subnet = |to: &Ref| {
            let mut subnet = Block::default();
            subnet.value("name", writer.link(to));
            subnet.list("source_ip_ranges_to_nat", vec![Expr::text("ALL_IP_RANGES")]);
            subnet
        };
        let subnets = self.subnets.iter().map(subnet).collect();
        block.blocks("subnetwork", subnets);
        Ok(block)
    }
}
