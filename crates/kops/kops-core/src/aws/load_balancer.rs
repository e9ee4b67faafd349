//! Classic and network load balancers.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    elbv2::{
        add_tags, attribute_pairs, attributes, balancer_items, elbv2, own_balancers, own_tags,
        tag_queries,
    },
    family::*,
    fields::{fields, id, id_list, put_tags, sorted, tag_pairs},
};
use crate::names::dns_name;

/// Returns the DNS name and the hosted zone in a description of a load balancer.
pub(crate) fn described_alias(balancer: &Value) -> String {
    format!("{} {}", balancer.text("DNSName"), balancer.text("CanonicalHostedZoneId"))
}

/// Returns a load balancer's DNS name and hosted zone. They are stored under a reference of their own.
pub(crate) fn alias(ids: &Ids, to: &Ref) -> String {
    match ids.get(&alias_of(to)) {
        Some(alias) => {
            let (name, zone) = alias.split_once(' ').unwrap_or((alias, ""));
            format!("{} {zone}", dns_name(name))
        }
        None => id(ids, to),
    }
}

/// Returns the reference under which a load balancer's DNS name is stored.
pub(crate) fn alias_of(to: &Ref) -> Ref {
    Ref::new(Kind::Record, format!("alias of {}", to.name))
}

/// The common part of classic and network load balancers.
#[derive(Clone, Debug)]
pub struct Balancer {
    /// The name in AWS, of at most 32 characters.
    pub short: String,
    /// `true` for an internal load balancer.
    pub internal: bool,
    /// `true` for IPv4 and IPv6.
    pub dual_stack: bool,
    /// The subnets.
    pub subnets: Vec<Mapping>,
    /// The security groups.
    pub security_groups: Vec<Ref>,
    /// `true` to balance across zones.
    pub cross_zone: bool,
    /// The access log.
    pub log: Option<AccessLog>,
    /// The certificate of port 443, for classic ones.
    pub certificate: Option<String>,
    /// The idle timeout in seconds, for classic ones.
    pub idle_timeout: i64,
}

/// A subnet of a load balancer.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The subnet.
    pub subnet: Ref,
    /// The allocation ID of an elastic address.
    pub allocation: Option<String>,
    /// A private address in the subnet.
    pub address: Option<String>,
}

/// The access log of a load balancer.
#[derive(Clone, Debug)]
pub struct AccessLog {
    /// The bucket.
    pub bucket: String,
    /// The prefix of the objects' names.
    pub prefix: Option<String>,
    /// The interval in minutes, for classic ones.
    pub interval: i64,
}

impl AccessLog {
    /// Returns the log's block in Terraform, without the interval.
    fn block(&self) -> Block {
        let mut block = Block::default();
        block.text("bucket", &self.bucket).flag("enabled", true);
        block.opt_value("bucket_prefix", self.prefix.as_ref().map(Expr::text));
        block
    }
}

impl Balancer {
    fn refs(&self) -> Vec<&Ref> {
        let subnets = self.subnets.iter().map(|mapping| &mapping.subnet);
        subnets.chain(&self.security_groups).collect()
    }

    /// Returns the subnets' mappings in the form of calls.
    fn subnet_mappings(&self, ids: &Ids) -> Vec<Value> {
        let mapping = |mapping: &Mapping| {
            let mut request = json!({"SubnetId": id(ids, &mapping.subnet)});
            request.set("AllocationId", mapping.allocation.as_deref());
            request.set("PrivateIPv4Address", mapping.address.as_deref());
            request
        };
        self.subnets.iter().map(mapping).collect()
    }

    /// Returns the IDs of the security groups.
    fn security_group_ids(&self, ids: &Ids) -> Vec<String> {
        self.security_groups.iter().map(|to| id(ids, to)).collect()
    }

    fn scheme(&self) -> &'static str {
        if self.internal { "internal" } else { "internet-facing" }
    }

    fn address_type(&self) -> &'static str {
        if self.dual_stack { "dualstack" } else { "ipv4" }
    }
}

/// A classic load balancer. Direct calls do not support it.
#[derive(Clone, Debug)]
pub struct ClassicBalancer(pub Balancer);

impl Operations for ClassicBalancer {
    fn find_existing(_scope: &Scope, _answers: &Answers) -> Vec<IdentifiedResource> {
        Vec::new()
    }

    fn delete(_identity: &str, _found: &ExistingResource) -> Vec<Call> {
        Vec::new()
    }

    fn refs(&self) -> Vec<&Ref> {
        self.0.refs()
    }

    fn direct_limit(&self) -> Option<Limit> {
        let remedy = "set spec.api.loadBalancer.class: Network";
        Some(Limit { feature: "a classic load balancer", remedy })
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        Err(own.internal_error())
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let (mut block, balancer) = (Block::default(), &self.0);
        let protocol = if balancer.certificate.is_some() { "SSL" } else { "TCP" };
        let mut listener = Block::default();
        listener.int("instance_port", 443).text("instance_protocol", protocol);
        listener.int("lb_port", 443).text("lb_protocol", protocol);
        listener.opt_value("ssl_certificate_id", balancer.certificate.as_ref().map(Expr::text));
        let mut health = Block::default();
        health.int("healthy_threshold", 2).int("interval", 10).text("target", "SSL:443");
        health.int("timeout", 5).int("unhealthy_threshold", 2);
        if let Some(log) = &balancer.log {
            let mut inner = log.block();
            inner.int("interval", log.interval);
            block.block("access_logs", inner);
        }
        block.flag("connection_draining", true).int("connection_draining_timeout", 300);
        block.flag("cross_zone_load_balancing", balancer.cross_zone);
        block.block("health_check", health).int("idle_timeout", balancer.idle_timeout);
        block.opt_value("internal", balancer.internal.then(|| Expr::flag(true)));
        block.block("listener", listener).text("name", &balancer.short).tags(own.tags);
        block.list("security_groups", writer.sorted_links(&balancer.security_groups));
        let subnets = balancer.subnets.iter().map(|mapping| &mapping.subnet);
        block.list("subnets", writer.sorted_links(subnets));
        Ok(block)
    }
}

/// A network load balancer.
#[derive(Clone, Debug)]
pub struct NetworkBalancer(pub Balancer);

impl Operations for NetworkBalancer {
    fn queries(scope: &Scope, answers: &Answers) -> Vec<Call> {
        let mut all = vec![elbv2("DescribeLoadBalancers", json!({}))];
        all.extend(tag_queries(answers));
        for arn in own_balancers(scope, answers) {
            let request = json!({"LoadBalancerArn": arn});
            all.push(elbv2("DescribeLoadBalancerAttributes", request));
        }
        all
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let own = own_tags(scope, answers);
        let found = balancer_items(answers).filter_map(|item| {
            let arn = item.text("LoadBalancerArn");
            let tags = own.get(arn)?;
            let set = attributes(answers, "DescribeLoadBalancerAttributes", "LoadBalancerArn", arn);
            let set = |key: &str| set.get(key).copied().unwrap_or_default().to_owned();
            let list = |path: &str, member: &str| {
                let items = item.items(path).iter();
                let texts = items.map(|item| item.as_str().unwrap_or(item.text(member)));
                sorted(texts.map(str::to_owned).collect())
            };
            let log = format!("{} {}", set("access_logs.s3.bucket"), set("access_logs.s3.prefix"));
            let mut fields = fields([
                ("Scheme", item.text("Scheme").to_owned()),
                ("Subnets", list("AvailabilityZones", "SubnetId")),
                ("SecurityGroups", list("SecurityGroups", "")),
                ("AddressType", item.text("IpAddressType").to_owned()),
                ("CrossZone", set("load_balancing.cross_zone.enabled")),
                ("Log", log.trim().to_owned()),
            ]);
            put_tags(&mut fields, tags);
            let name = tags.get("Name").cloned().unwrap_or_default();
            let (id, context) = (arn.to_owned(), described_alias(item));
            Some((name, ExistingResource { id, fields, owned: true, context }))
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        vec![elbv2("DeleteLoadBalancer", json!({"LoadBalancerArn": found.id}))]
    }

    fn refs(&self) -> Vec<&Ref> {
        self.0.refs()
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        let balancer = &self.0;
        let subnets: Vec<Ref> =
            balancer.subnets.iter().map(|mapping| mapping.subnet.clone()).collect();
        let log = balancer.log.as_ref().map(|log| {
            format!("{} {}", log.bucket, log.prefix.as_deref().unwrap_or_default())
                .trim()
                .to_owned()
        });
        fields([
            ("Scheme", balancer.scheme().to_owned()),
            ("Subnets", id_list(ids, &subnets)),
            ("SecurityGroups", id_list(ids, &balancer.security_groups)),
            ("AddressType", balancer.address_type().to_owned()),
            ("CrossZone", balancer.cross_zone.to_string()),
            ("Log", log.unwrap_or_default()),
        ])
    }

    fn create(&self, own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let balancer = &self.0;
        let request = json!({
            "Name": balancer.short,
            "Type": "network",
            "Scheme": balancer.scheme(),
            "IpAddressType": balancer.address_type(),
            "SubnetMappings": balancer.subnet_mappings(ids),
            "SecurityGroups": balancer.security_group_ids(ids),
            "Tags": tag_pairs(own.tags),
        });
        let id = IdSource::First { list: "LoadBalancers", member: "LoadBalancerArn" };
        let creation = Creation::new(elbv2("CreateLoadBalancer", request), id);
        let log = balancer.log.as_ref().map(|_| "Log");
        Ok(creation.with_later(["CrossZone"].into_iter().chain(log)))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        update.validate_fields(&["Subnets", "SecurityGroups", "CrossZone", "Log"])?;
        let (balancer, arn, ids) = (&self.0, update.id(), update.ids);
        let mut calls = Vec::new();
        if update.has("Subnets") {
            let mappings = balancer.subnet_mappings(ids);
            let request = json!({"LoadBalancerArn": arn, "SubnetMappings": mappings});
            calls.push(elbv2("SetSubnets", request));
        }
        if update.has("SecurityGroups") {
            let groups = balancer.security_group_ids(ids);
            let request = json!({"LoadBalancerArn": arn, "SecurityGroups": groups});
            calls.push(elbv2("SetSecurityGroups", request));
        }
        if update.has("CrossZone") || update.has("Log") {
            let mut pairs = vec![
                ("load_balancing.cross_zone.enabled", balancer.cross_zone.to_string()),
                ("access_logs.s3.enabled", balancer.log.is_some().to_string()),
            ];
            if let Some(log) = &balancer.log {
                pairs.push(("access_logs.s3.bucket", log.bucket.clone()));
                pairs.extend(log.prefix.clone().map(|prefix| ("access_logs.s3.prefix", prefix)));
            }
            let request = json!({"LoadBalancerArn": arn, "Attributes": attribute_pairs(pairs)});
            calls.push(elbv2("ModifyLoadBalancerAttributes", request));
        }
        Ok(calls)
    }

    fn set_tags(&self, id: &str, tags: &Tags) -> Call {
        add_tags(id, tags)
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let (mut block, balancer) = (Block::default(), &self.0);
        if let Some(log) = &balancer.log {
            block.block("access_logs", log.block());
        }
        block.flag("enable_cross_zone_load_balancing", balancer.cross_zone);
        block.flag("internal", balancer.internal).text("load_balancer_type", "network");
        block.opt_value("ip_address_type", balancer.dual_stack.then(|| Expr::text("dualstack")));
        block.text("name", &balancer.short).tags(own.tags);
        block.list("security_groups", writer.sorted_links(&balancer.security_groups));
        let mapping = |mapping: &Mapping| {
            let mut block = Block::default();
            block.value("subnet_id", writer.link(&mapping.subnet));
            block.opt_value("allocation_id", mapping.allocation.as_ref().map(Expr::text));
            block.opt_value("private_ipv4_address", mapping.address.as_ref().map(Expr::text));
            block
        };
        block.blocks("subnet_mapping", balancer.subnets.iter().map(mapping).collect());
        Ok(block)
    }
}
