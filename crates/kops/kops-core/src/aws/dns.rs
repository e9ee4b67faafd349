//! Route 53: the zone, the VPCs that see it, and its records.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    family::*,
    fields::{fields, id},
    load_balancer::alias,
};
use crate::names::dns_name;

fn route53(operation: &'static str, parameters: Value) -> Call {
    Call::new("route53", operation, parameters)
}

/// Returns a zone's ID in the form of calls.
fn zone_id(ids: &Ids, zone: &Ref) -> String {
    id(ids, zone).trim_start_matches("/hostedzone/").to_owned()
}

/// Returns the call that changes a record of a zone.
fn record_call(zone: &str, action: &str, set: &Value) -> Call {
    let change = json!({"Action": action, "ResourceRecordSet": set});
    let request = json!({"Id": zone, "ChangeBatch": {"Changes": {"Change": [change]}}});
    route53("ChangeResourceRecordSets", request)
}

/// A hosted zone. Only existing ones are supported.
#[derive(Clone, Debug)]
pub struct Zone;

impl Operations for Zone {
    fn find_existing(_scope: &Scope, _answers: &Answers) -> Vec<IdentifiedResource> {
        Vec::new()
    }

    fn delete(_identity: &str, _found: &ExistingResource) -> Vec<Call> {
        Vec::new()
    }

    fn direct_limit(&self) -> Option<Limit> {
        let remedy = "create it, and set its ID as spec.dnsZone";
        Some(Limit { feature: "creating a DNS zone", remedy })
    }

    fn extend_scope(&self, shared: Option<&str>, scope: &mut Scope) {
        let id = shared.unwrap_or_default();
        id.trim_start_matches("/hostedzone/").clone_into(&mut scope.zone);
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        Err(own.internal_error())
    }

    fn terraform(&self, own: &Header<'_>, _writer: &mut Writer<'_>) -> Result<Block, Error> {
        Err(Error::Unsupported {
            what: format!("making DNS zone {:?} with Terraform", own.name),
            remedy: "create it, and set its ID as spec.dnsZone",
        })
    }
}

/// The visibility of a private zone in a VPC.
#[derive(Clone, Debug)]
pub struct ZoneAssociation {
    /// The zone.
    pub zone: Ref,
    /// The VPC.
    pub vpc: Ref,
    /// The VPC's region.
    pub region: String,
}

impl Operations for ZoneAssociation {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        let query = || route53("GetHostedZone", json!({"Id": scope.zone}));
        scope.zone_is_private.then(query).into_iter().collect()
    }

    fn find_existing(_scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = answers.each("GetHostedZone", "VPCs").map(|vpc| {
            let id = vpc.text("VPCId").to_owned();
            (id.clone(), ExistingResource { id, ..ExistingResource::default() })
        });
        found.collect()
    }

    fn delete(_identity: &str, _found: &ExistingResource) -> Vec<Call> {
        Vec::new()
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.zone, &self.vpc]
    }

    fn extend_scope(&self, _shared: Option<&str>, scope: &mut Scope) {
        scope.zone_is_private = true;
    }

    fn identity(&self, _own: &Header<'_>, ids: &Ids) -> Option<String> {
        ids.get(&self.vpc).cloned()
    }

    fn create(&self, _own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let vpc = json!({"VPCId": id(ids, &self.vpc), "VPCRegion": self.region});
        let request = json!({"Id": zone_id(ids, &self.zone), "VPC": vpc});
        Ok(Creation::new(route53("AssociateVPCWithHostedZone", request), IdSource::Name))
    }

    fn terraform(&self, _own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.value("vpc_id", writer.link(&self.vpc)).value("zone_id", writer.link(&self.zone));
        Ok(block)
    }
}

/// A record that is an alias of a load balancer.
#[derive(Clone, Debug)]
pub struct Record {
    /// The zone.
    pub zone: Ref,
    /// The DNS name.
    pub name: String,
    /// The type, such as `A`.
    pub class: String,
    /// The load balancer.
    pub to: Ref,
}

impl Operations for Record {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        // The listing starts at the name, and would return a hundred records after it.
        let query = |name| {
            let request = json!({"Id": scope.zone, "name": name, "maxitems": "10"});
            route53("ListResourceRecordSets", request)
        };
        scope.names.iter().map(query).collect()
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let pages = answers.of("ListResourceRecordSets");
        let records = pages.flat_map(|(parameters, page)| {
            page.items("ResourceRecordSets").iter().map(move |record| (parameters, record))
        });
        let mut all = Vec::new();
        for (parameters, record) in records {
            let (name, class) = (dns_name(record.text("Name")), record.text("Type"));
            let is_own = scope.names.iter().any(|own| dns_name(own) == name);
            if !is_own || !["A", "AAAA"].contains(&class) {
                continue;
            }
            let target = dns_name(record.text("AliasTarget.DNSName"));
            let alias = format!("{target} {}", record.text("AliasTarget.HostedZoneId"));
            let identity = format!("{name} {class}");
            // A deletion needs the whole record and its zone.
            let mut whole = record.clone();
            whole.put("zone", parameters.text("Id"));
            let found = ExistingResource {
                id: identity.clone(),
                fields: fields([("Alias", alias)]),
                owned: true,
                context: whole.to_string(),
            };
            all.push((identity, found));
        }
        all
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        let record: Value = serde_json::from_str(&found.context).unwrap_or_default();
        let mut set = json!({"Name": record.text("Name"), "Type": record.text("Type")});
        if record.has("AliasTarget") {
            let alias = json!({
                "HostedZoneId": record.text("AliasTarget.HostedZoneId"),
                "DNSName": record.text("AliasTarget.DNSName"),
                "EvaluateTargetHealth": record.text("AliasTarget.EvaluateTargetHealth"),
            });
            set.put("AliasTarget", alias);
        } else {
            set.put("TTL", record.text("TTL"));
            let records = json!({"ResourceRecord": record.items("ResourceRecords")});
            set.put("ResourceRecords", records);
        }
        vec![record_call(record.text("zone"), "DELETE", &set)]
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.zone, &self.to]
    }

    fn extend_scope(&self, _shared: Option<&str>, scope: &mut Scope) {
        scope.names.insert(self.name.clone());
    }

    fn identity(&self, _own: &Header<'_>, _ids: &Ids) -> Option<String> {
        Some(format!("{} {}", dns_name(&self.name), self.class))
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        fields([("Alias", alias(ids, &self.to))])
    }

    fn create(&self, _own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let alias = alias(ids, &self.to);
        let (target, target_zone) = alias.split_once(' ').unwrap_or((&alias, ""));
        let alias =
            json!({"HostedZoneId": target_zone, "DNSName": target, "EvaluateTargetHealth": false});
        let set = json!({"Name": self.name, "Type": self.class, "AliasTarget": alias});
        let call = record_call(&zone_id(ids, &self.zone), "UPSERT", &set);
        Ok(Creation::new(call, IdSource::Name))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        Ok(vec![self.create(&update.own, update.ids)?.call])
    }

    fn terraform(&self, _own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let (mut block, mut alias) = (Block::default(), Block::default());
        alias.flag("evaluate_target_health", false);
        alias.value("name", writer.property(&self.to, "dns_name"));
        alias.value("zone_id", writer.property(&self.to, "zone_id"));
        block.block("alias", alias).text("name", &self.name).text("type", &self.class);
        block.value("zone_id", writer.link(&self.zone));
        Ok(block)
    }
}
