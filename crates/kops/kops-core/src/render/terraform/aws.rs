//! The Terraform types and arguments of each kind of resource.

use super::{
    TopLevelBlock, Writer,
    hcl::{Block, Expr},
    names,
};
use crate::{
    Error,
    model::aws::{
        Balancer, Body, Ebs, Kind, Listener, Peer, Ref, Resource, RouteTarget, Rule, SubnetBody,
        TargetGroup,
    },
};

/// Returns the provider's type of a kind.
fn type_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Vpc => "aws_vpc",
        Kind::VpcCidr => "aws_vpc_ipv4_cidr_block_association",
        Kind::DhcpOptions => "aws_vpc_dhcp_options",
        Kind::DhcpOptionsAssociation => "aws_vpc_dhcp_options_association",
        Kind::InternetGateway => "aws_internet_gateway",
        Kind::EgressOnlyGateway => "aws_egress_only_internet_gateway",
        Kind::Subnet => "aws_subnet",
        Kind::RouteTable => "aws_route_table",
        Kind::RouteTableAssociation => "aws_route_table_association",
        Kind::Route => "aws_route",
        Kind::ElasticIp => "aws_eip",
        Kind::NatGateway => "aws_nat_gateway",
        Kind::SecurityGroup => "aws_security_group",
        Kind::SecurityGroupRule => "aws_security_group_rule",
        Kind::Volume => "aws_ebs_volume",
        Kind::Role => "aws_iam_role",
        Kind::RolePolicy => "aws_iam_role_policy",
        Kind::RolePolicyAttachment => "aws_iam_role_policy_attachment",
        Kind::InstanceProfile => "aws_iam_instance_profile",
        Kind::OidcProvider => "aws_iam_openid_connect_provider",
        Kind::SshKey => "aws_key_pair",
        Kind::LaunchTemplate => "aws_launch_template",
        Kind::ScalingGroup => "aws_autoscaling_group",
        Kind::LifecycleHook => "aws_autoscaling_lifecycle_hook",
        Kind::ClassicBalancer => "aws_elb",
        Kind::NetworkBalancer => "aws_lb",
        Kind::Listener => "aws_lb_listener",
        Kind::TargetGroup => "aws_lb_target_group",
        Kind::Zone => "aws_route53_zone",
        Kind::ZoneAssociation => "aws_route53_zone_association",
        Kind::Record => "aws_route53_record",
        Kind::Queue => "aws_sqs_queue",
        Kind::EventRule => "aws_cloudwatch_event_rule",
        Kind::EventTarget => "aws_cloudwatch_event_target",
        Kind::StoreObject => "aws_s3_object",
    }
}

/// Returns a resource's name in the configuration; most keep their own.
fn terraform_name(kind: Kind, name: &str) -> String {
    match kind {
        Kind::VpcCidr => format!("cidr-{name}"),
        Kind::Route => format!("route-{name}"),
        Kind::Volume if name.starts_with(|c: char| c.is_ascii_digit()) => format!("ebs-{name}"),
        Kind::SshKey => name.replace(':', ""),
        _ => name.to_owned(),
    }
}

/// The port range of a rule without ports, where the provider requires one.
const ALL_PORTS: (i64, i64) = (0, 65535);

impl Writer<'_> {
    /// Returns the expression by which others refer to a resource.
    pub(super) fn link(&self, to: &Ref) -> Expr {
        match to.kind {
            Kind::Role => self.property(to, "name"),
            Kind::Queue | Kind::OidcProvider => self.property(to, "arn"),
            _ => self.property(to, "id"),
        }
    }

    pub(super) fn links(&self, all: &[Ref]) -> Vec<Expr> {
        all.iter().map(|to| self.link(to)).collect()
    }

    fn sorted_links(&self, all: &[Ref]) -> Vec<Expr> {
        let mut links = self.links(all);
        links.sort_by_key(Expr::written);
        links
    }

    /// Returns a property of a resource; for an existing resource, its ID.
    pub(super) fn property(&self, to: &Ref, property: &str) -> Expr {
        let shared = self.model.find(to).and_then(|found| found.shared.as_deref());
        // The range of an existing VPC is read from a data source.
        let looked_up = to.kind == Kind::Vpc && property != "id";
        if let Some(id) = shared.filter(|_| !looked_up) {
            return Expr::text(id);
        }
        let name = terraform_name(to.kind, &to.name);
        // An invalid name is rejected when its resource is rendered.
        let label = names::label(&name).unwrap_or_default();
        Expr::Token(format!("{}.{label}.{property}", type_name(to.kind)))
    }

    /// Returns a resource's blocks; most existing resources have none.
    pub(super) fn resource(&mut self, resource: &Resource) -> Result<Vec<TopLevelBlock>, Error> {
        let kind = resource.kind();
        let name = terraform_name(kind, &resource.name);
        let kind = type_name(kind);
        if let Some(id) = &resource.shared {
            let Body::Vpc { .. } = resource.body else { return Ok(Vec::new()) };
            let mut block = Block::default();
            block.text("id", id);
            return Ok(vec![TopLevelBlock { keyword: "data", kind, name, block }]);
        }
        let block = self.body(resource, kind, &name)?;
        Ok(vec![TopLevelBlock { keyword: "resource", kind, name, block }])
    }

    fn body(&mut self, resource: &Resource, kind: &str, name: &str) -> Result<Block, Error> {
        let mut block = Block::default();
        let (tags, own) = (&resource.tags, resource.name.as_str());
        match &resource.body {
            Body::Vpc { cidr } => {
                block.flag("assign_generated_ipv6_cidr_block", true).text("cidr_block", cidr);
                block
                    .flag("enable_dns_hostnames", true)
                    .flag("enable_dns_support", true)
                    .tags(tags);
            }
            Body::VpcCidr { vpc, cidr } => {
                block.text("cidr_block", cidr).value("vpc_id", self.link(vpc));
            }
            Body::DhcpOptions { domain, servers } => {
                block.text("domain_name", domain).tags(tags);
                block.value("domain_name_servers", Expr::texts(servers));
            }
            Body::DhcpOptionsAssociation { vpc, options } => {
                block.value("dhcp_options_id", self.link(options)).value("vpc_id", self.link(vpc));
            }
            Body::InternetGateway { vpc }
            | Body::EgressOnlyGateway { vpc }
            | Body::RouteTable { vpc, .. } => {
                block.tags(tags).value("vpc_id", self.link(vpc));
            }
            Body::Subnet(subnet) => self.subnet(&mut block, subnet, resource)?,
            Body::RouteTableAssociation { table, subnet } => {
                block.value("route_table_id", self.link(table));
                block.value("subnet_id", self.link(subnet));
            }
            Body::Route { table, to, via } => self.route(&mut block, table, to, via)?,
            Body::ElasticIp => drop(block.text("domain", "vpc").tags(tags)),
            Body::NatGateway { address, subnet } => {
                block.maybe("allocation_id", address.as_ref().map(|to| self.link(to)));
                block.value("subnet_id", self.link(subnet)).tags(tags);
            }
            Body::SecurityGroup { vpc, description } => {
                block.text("description", description).text("name", own).tags(tags);
                block.value("vpc_id", self.link(vpc));
            }
            Body::SecurityGroupRule(rule) => self.rule(&mut block, rule),
            Body::Volume { zone, ebs } => {
                block.text("availability_zone", zone).tags(tags);
                volume(&mut block, ebs, "");
            }
            Body::LaunchTemplate(template) => {
                self.launch_template(&mut block, resource, template)?
            }
            Body::ScalingGroup(group) => self.scaling_group(&mut block, resource, group),
            Body::LifecycleHook { group, hook, result, heartbeat, transition } => {
                block.value("autoscaling_group_name", self.link(group)).text("name", hook);
                block.text("default_result", result).int("heartbeat_timeout", *heartbeat);
                block.text("lifecycle_transition", transition);
            }
            Body::ClassicBalancer(balancer) => self.classic(&mut block, balancer, resource),
            Body::NetworkBalancer(balancer) => self.network(&mut block, balancer, resource),
            Body::Listener(listener) => self.listener(&mut block, listener),
            Body::TargetGroup(group) => self.target_group(&mut block, group, resource),
            Body::Zone => {
                return Err(Error::Unsupported {
                    what: format!("making DNS zone {own:?} with Terraform"),
                    remedy: "create it, and set its ID as spec.dnsZone",
                });
            }
            Body::ZoneAssociation { zone, vpc } => {
                block.value("vpc_id", self.link(vpc)).value("zone_id", self.link(zone));
            }
            Body::Record { zone, name, class, to } => {
                let mut alias = Block::default();
                alias.flag("evaluate_target_health", false);
                alias.value("name", self.property(to, "dns_name"));
                alias.value("zone_id", self.property(to, "zone_id"));
                block.block("alias", alias).text("name", name).text("type", class);
                block.value("zone_id", self.link(zone));
            }
            Body::EventTarget { rule, queue } => {
                block.value("arn", self.link(queue)).value("rule", self.link(rule));
            }
            _ => self.with_file(&mut block, resource, kind, name)?,
        }
        Ok(block)
    }

    /// Renders resources with documents in files, and the other IAM resources.
    fn with_file(
        &mut self,
        block: &mut Block,
        resource: &Resource,
        kind: &str,
        name: &str,
    ) -> Result<(), Error> {
        let (tags, own) = (&resource.tags, resource.name.as_str());
        let mut file = |field, text: &str| self.file(kind, name, field, text.as_bytes(), false);
        match &resource.body {
            Body::Role { assumed, boundary, .. } => {
                block.value("assume_role_policy", file("policy", assumed)?);
                block.text("name", own).tags(tags);
                block.maybe("permissions_boundary", boundary.as_ref().map(Expr::text));
            }
            Body::RolePolicy { role, document } => {
                block.text("name", own).value("policy", file("policy", document)?);
                block.value("role", self.link(role));
            }
            Body::RolePolicyAttachment { role, policy } => {
                block.text("policy_arn", policy).value("role", self.link(role));
            }
            Body::InstanceProfile { role } => {
                block.text("name", own).tags(tags);
                block.maybe("role", role.as_ref().map(|role| self.link(role)));
            }
            Body::OidcProvider { url, audiences, thumbprints } => {
                block.value("client_id_list", Expr::texts(audiences)).tags(tags);
                block.value("thumbprint_list", Expr::texts(thumbprints)).text("url", url);
            }
            Body::SshKey { public } => {
                block.text("key_name", own).tags(tags);
                block.value("public_key", file("public_key", public)?);
            }
            Body::Queue { retention, policy } => {
                block.int("message_retention_seconds", *retention).text("name", own).tags(tags);
                block.value("policy", file("policy", policy)?);
            }
            Body::EventRule { pattern } => {
                block.value("event_pattern", file("event_pattern", pattern)?);
                block.text("name", own).tags(tags);
            }
            Body::StoreObject { bucket, key, content } => {
                block.text("bucket", bucket).text("key", key);
                block.value("content", file("content", content)?);
                block.value("provider", Expr::Token("aws.files".to_owned()));
                block.text("server_side_encryption", "AES256");
            }
            other => {
                return Err(Error::Unsupported {
                    what: format!("{:?} {own:?} with Terraform", other.kind()),
                    remedy: "this is a bug; please report it",
                });
            }
        }
        Ok(())
    }

    fn subnet(&self, block: &mut Block, subnet: &SubnetBody, own: &Resource) -> Result<(), Error> {
        let (v4, v6) = (!subnet.cidr.is_empty(), !subnet.ipv6.is_empty());
        block.text("availability_zone", &subnet.zone).tags(&own.tags);
        block.value("vpc_id", self.link(&subnet.vpc));
        if v4 {
            block.text("cidr_block", &subnet.cidr);
        } else {
            block.flag("enable_dns64", true).flag("ipv6_native", true);
        }
        if v6 {
            block.flag("assign_ipv6_address_on_creation", true);
            block.value("ipv6_cidr_block", ipv6_range(&subnet.ipv6)?);
        }
        if subnet.named_by_id {
            block.text("private_dns_hostname_type_on_launch", "resource-name");
            for (holds, record) in [(v4, "a"), (v6, "aaaa")] {
                if holds {
                    block
                        .flag(&format!("enable_resource_name_dns_{record}_record_on_launch"), true);
                }
            }
        }
        Ok(())
    }

    fn route(
        &self,
        block: &mut Block,
        table: &Ref,
        to: &str,
        via: &RouteTarget,
    ) -> Result<(), Error> {
        let field =
            if to.contains(':') { "destination_ipv6_cidr_block" } else { "destination_cidr_block" };
        block.text(field, to).value("route_table_id", self.link(table));
        let (field, via) = match via {
            RouteTarget::Internet(to) => ("gateway_id", self.link(to)),
            RouteTarget::GivenInternet(id) => ("gateway_id", Expr::text(id)),
            RouteTarget::EgressOnly(to) => ("egress_only_gateway_id", self.link(to)),
            RouteTarget::GivenEgressOnly(id) => ("egress_only_gateway_id", Expr::text(id)),
            RouteTarget::Nat(to) => ("nat_gateway_id", self.link(to)),
            RouteTarget::GivenNat(id) => ("nat_gateway_id", Expr::text(id)),
            RouteTarget::Transit(id) => ("transit_gateway_id", Expr::text(id)),
            RouteTarget::Peering(id) => ("vpc_peering_connection_id", Expr::text(id)),
            RouteTarget::Instance(id) => {
                return Err(Error::Unsupported {
                    what: format!("a route to {to} by machine {id} with Terraform"),
                    remedy: "since version 5 its provider supports only interfaces; use a NAT gateway",
                });
            }
        };
        block.value(field, via);
        Ok(())
    }

    fn rule(&self, block: &mut Block, rule: &Rule) {
        let ports = match (&rule.protocol, rule.ports) {
            (None, _) => (0, 0),
            (Some(_), ports) => ports.unwrap_or(ALL_PORTS),
        };
        block.int("from_port", ports.0).int("to_port", ports.1);
        block.text("protocol", rule.protocol.as_deref().unwrap_or("-1"));
        block.text("type", if rule.egress { "egress" } else { "ingress" });
        block.value("security_group_id", self.link(&rule.group));
        let (field, peer) = match &rule.peer {
            Peer::Group(group) => ("source_security_group_id", self.link(group)),
            Peer::V4(range) => ("cidr_blocks", Expr::List(vec![Expr::text(range)])),
            Peer::V6(range) => ("ipv6_cidr_blocks", Expr::List(vec![Expr::text(range)])),
            Peer::Prefixes(id) => ("prefix_list_ids", Expr::List(vec![Expr::text(id)])),
        };
        block.value(field, peer);
    }

    fn classic(&self, block: &mut Block, balancer: &Balancer, own: &Resource) {
        let protocol = if balancer.certificate.is_some() { "SSL" } else { "TCP" };
        let mut listener = Block::default();
        listener.int("instance_port", 443).text("instance_protocol", protocol);
        listener.int("lb_port", 443).text("lb_protocol", protocol);
        listener.maybe("ssl_certificate_id", balancer.certificate.as_ref().map(Expr::text));
        let mut health = Block::default();
        health.int("healthy_threshold", 2).int("interval", 10).text("target", "SSL:443");
        health.int("timeout", 5).int("unhealthy_threshold", 2);
        if let Some((bucket, prefix, minutes)) = &balancer.log {
            let mut log = Block::default();
            log.text("bucket", bucket).flag("enabled", true).int("interval", *minutes);
            log.maybe("bucket_prefix", prefix.as_ref().map(Expr::text));
            block.block("access_logs", log);
        }
        block.flag("connection_draining", true).int("connection_draining_timeout", 300);
        block.flag("cross_zone_load_balancing", balancer.cross_zone);
        block.block("health_check", health).int("idle_timeout", balancer.idle_timeout);
        block.maybe("internal", balancer.internal.then(|| Expr::flag(true)));
        block.block("listener", listener).text("name", &balancer.short).tags(&own.tags);
        block.list("security_groups", self.sorted_links(&balancer.security_groups));
        let subnets: Vec<Ref> = balancer.subnets.iter().map(|one| one.subnet.clone()).collect();
        block.list("subnets", self.sorted_links(&subnets));
    }

    fn network(&self, block: &mut Block, balancer: &Balancer, own: &Resource) {
        if let Some((bucket, prefix, _)) = &balancer.log {
            let mut log = Block::default();
            log.text("bucket", bucket).flag("enabled", true);
            log.maybe("bucket_prefix", prefix.as_ref().map(Expr::text));
            block.block("access_logs", log);
        }
        block.flag("enable_cross_zone_load_balancing", balancer.cross_zone);
        block.flag("internal", balancer.internal).text("load_balancer_type", "network");
        block.maybe("ip_address_type", balancer.dual_stack.then(|| Expr::text("dualstack")));
        block.text("name", &balancer.short).tags(&own.tags);
        block.list("security_groups", self.sorted_links(&balancer.security_groups));
        let mapping = |one: &crate::model::aws::Mapping| {
            let mut block = Block::default();
            block.value("subnet_id", self.link(&one.subnet));
            block.maybe("allocation_id", one.allocation.as_ref().map(Expr::text));
            block.maybe("private_ipv4_address", one.address.as_ref().map(Expr::text));
            block
        };
        block.blocks("subnet_mapping", balancer.subnets.iter().map(mapping).collect());
    }

    fn listener(&self, block: &mut Block, listener: &Listener) {
        let mut action = Block::default();
        action.value("target_group_arn", self.link(&listener.group)).text("type", "forward");
        block.block("default_action", action).int("port", listener.port);
        block.value("load_balancer_arn", self.link(&listener.balancer));
        match &listener.tls {
            None => drop(block.text("protocol", "TCP")),
            Some((certificate, policy)) => {
                block.text("protocol", "TLS").text("certificate_arn", certificate);
                block.text("ssl_policy", policy);
            }
        }
    }

    fn target_group(&self, block: &mut Block, group: &TargetGroup, own: &Resource) {
        let mut health = Block::default();
        health.int("healthy_threshold", 2).int("interval", 10).int("unhealthy_threshold", 2);
        health.text("protocol", group.health.protocol);
        health.maybe("path", group.health.path.map(Expr::text));
        block.text("connection_termination", "true").text("deregistration_delay", "30");
        block.block("health_check", health).text("name", &own.name).int("port", group.port);
        block.text("protocol", group.protocol).tags(&own.tags);
        block.value("vpc_id", self.link(&group.vpc));
    }
}

/// Returns a subnet's IPv6 range, which may be part of the VPC's: `/64#1a` is part number 1a, in hexadecimal.
fn ipv6_range(text: &str) -> Result<Expr, Error> {
    let Some(part) = text.strip_prefix('/') else { return Ok(Expr::text(text)) };
    let parsed = part.split_once('#').and_then(|(size, number)| {
        Some((size.parse::<u8>().ok()?, u64::from_str_radix(number, 16).ok()?))
    });
    let Some((size, number)) = parsed else {
        return Err(Error::value(
            "spec.subnets[].ipv6CIDR",
            text,
            "is not a part of a range such as /64#1a",
        ));
    };
    let (block, length) = ("local.vpc_ipv6_cidr_block", "local.vpc_ipv6_cidr_length");
    Ok(Expr::Token(format!("cidrsubnet({block}, {size} - {length}, {number})")))
}

/// Sets a volume's arguments. `prefix` is added to some of those of a machine's disk.
pub(super) fn volume(block: &mut Block, ebs: &Ebs, prefix: &str) {
    block.flag("encrypted", ebs.encrypted);
    block.maybe("iops", ebs.iops.map(Expr::int));
    block.maybe("kms_key_id", ebs.key.as_ref().map(Expr::text));
    block.int(&format!("{prefix}size"), ebs.size);
    block.maybe("throughput", ebs.throughput.map(Expr::int));
    block.text(&format!("{prefix}type"), &ebs.class);
}
