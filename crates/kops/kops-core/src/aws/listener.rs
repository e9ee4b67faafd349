//! The listeners of network load balancers, and the target groups that they forward to.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    elbv2::{
        add_tags, attribute_pairs, attributes, elbv2, own_balancers, own_tags, target_group_items,
    },
    family::*,
    fields::{fields, id, put_tags, tag_pairs},
};

/// The attributes of a target group.
const DELAY: &str = "deregistration_delay.timeout_seconds";
const TERMINATION: &str = "deregistration_delay.connection_termination.enabled";

/// A listener of a network load balancer.
#[derive(Clone, Debug)]
pub struct Listener {
    /// The load balancer.
    pub balancer: Ref,
    /// The port.
    pub port: i64,
    /// The target group.
    pub group: Ref,
    /// The TLS termination; `None` for TCP.
    pub tls: Option<TlsTermination>,
}

/// The termination of TLS by a listener.
#[derive(Clone, Debug)]
pub struct TlsTermination {
    /// The certificate's ARN.
    pub certificate: String,
    /// The policy for protocols and ciphers.
    pub policy: String,
}

impl Listener {
    /// Adds the parameters that can be changed.
    fn put_parameters(&self, ids: &Ids, request: &mut Value) {
        request.put("Port", self.port);
        request.put("Protocol", if self.tls.is_some() { "TLS" } else { "TCP" });
        let action = json!([{"Type": "forward", "TargetGroupArn": id(ids, &self.group)}]);
        request.put("DefaultActions", action);
        if let Some(tls) = &self.tls {
            request.put("Certificates", json!([{"CertificateArn": tls.certificate}]));
            request.put("SslPolicy", tls.policy.as_str());
        }
    }
}

impl Operations for Listener {
    fn queries(scope: &Scope, answers: &Answers) -> Vec<Call> {
        let query = |arn| elbv2("DescribeListeners", json!({"LoadBalancerArn": arn}));
        own_balancers(scope, answers).map(query).collect()
    }

    fn find_existing(_scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = answers.each("DescribeListeners", "Listeners").map(|item| {
            let first = |list: &str, member: &str| {
                item.items(list).first().map(|one| one.text(member)).unwrap_or_default().to_owned()
            };
            let fields = fields([
                ("Protocol", item.text("Protocol").to_owned()),
                ("TargetGroup", first("DefaultActions", "TargetGroupArn")),
                ("Certificate", first("Certificates", "CertificateArn")),
                ("Policy", item.text("SslPolicy").to_owned()),
            ]);
            let id = item.text("ListenerArn").to_owned();
            let identity = format!("{} {}", item.text("LoadBalancerArn"), item.text("Port"));
            let context = String::new();
            (identity, ExistingResource { id, fields, owned: true, context })
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        vec![elbv2("DeleteListener", json!({"ListenerArn": found.id}))]
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.balancer, &self.group]
    }

    fn identity(&self, _own: &Header<'_>, ids: &Ids) -> Option<String> {
        Some(format!("{} {}", ids.get(&self.balancer)?, self.port))
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        let protocol = if self.tls.is_some() { "TLS" } else { "TCP" };
        let mut all =
            fields([("Protocol", protocol.to_owned()), ("TargetGroup", id(ids, &self.group))]);
        if let Some(tls) = &self.tls {
            all.insert("Certificate".to_owned(), tls.certificate.clone());
            all.insert("Policy".to_owned(), tls.policy.clone());
        }
        all
    }

    fn create(&self, _own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let mut request = json!({"LoadBalancerArn": id(ids, &self.balancer)});
        self.put_parameters(ids, &mut request);
        let id = IdSource::First { list: "Listeners", member: "ListenerArn" };
        Ok(Creation::new(elbv2("CreateListener", request), id))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        let mut request = json!({"ListenerArn": update.id()});
        self.put_parameters(update.ids, &mut request);
        Ok(vec![elbv2("ModifyListener", request)])
    }

    fn terraform(&self, _own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let (mut block, mut action) = (Block::default(), Block::default());
        action.value("target_group_arn", writer.link(&self.group)).text("type", "forward");
        block.block("default_action", action).int("port", self.port);
        block.value("load_balancer_arn", writer.link(&self.balancer));
        match &self.tls {
            None => drop(block.text("protocol", "TCP")),
            Some(tls) => {
                block.text("protocol", "TLS").text("certificate_arn", &tls.certificate);
                block.text("ssl_policy", &tls.policy);
            }
        }
        Ok(block)
    }
}

/// The target group of a listener.
#[derive(Clone, Debug)]
pub struct TargetGroup {
    /// The VPC.
    pub vpc: Ref,
    /// The targets' port.
    pub port: i64,
    /// The protocol.
    pub protocol: &'static str,
    /// The health check.
    pub health: HealthCheck,
}

/// A health check of targets: every 10 s, two results decide.
#[derive(Clone, Debug)]
pub struct HealthCheck {
    /// `TCP`, `HTTP` or `HTTPS`.
    pub protocol: &'static str,
    /// The path of HTTP checks.
    pub path: Option<&'static str>,
}

impl HealthCheck {
    /// Adds the check to the parameters of a call.
    fn set_parameters(&self, request: &mut Value) {
        request.put("HealthCheckProtocol", self.protocol);
        request.set("HealthCheckPath", self.path);
        request.put("HealthyThresholdCount", 2);
        request.put("UnhealthyThresholdCount", 2);
        request.put("HealthCheckIntervalSeconds", 10);
    }
}

impl Operations for TargetGroup {
    fn queries(scope: &Scope, answers: &Answers) -> Vec<Call> {
        let mut all = vec![elbv2("DescribeTargetGroups", json!({}))];
        let own = own_tags(scope, answers).into_keys();
        for arn in own.filter(|arn| !arn.contains(":loadbalancer/")) {
            let request = json!({"TargetGroupArn": arn});
            all.push(elbv2("DescribeTargetGroupAttributes", request));
        }
        all
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let own = own_tags(scope, answers);
        let found = target_group_items(answers).filter_map(|item| {
            let arn = item.text("TargetGroupArn");
            let tags = own.get(arn)?;
            let text = |path: &str| item.text(path).to_owned();
            let set = attributes(answers, "DescribeTargetGroupAttributes", "TargetGroupArn", arn);
            let set = |key: &str| set.get(key).copied().unwrap_or_default().to_owned();
            let health = format!("{} {}", text("HealthCheckProtocol"), text("HealthCheckPath"));
            let thresholds =
                ["HealthyThresholdCount", "UnhealthyThresholdCount", "HealthCheckIntervalSeconds"];
            let mut fields = fields([
                ("VPC", text("VpcId")),
                ("Port", text("Port")),
                ("Protocol", text("Protocol")),
                ("Health", health.trim().to_owned()),
                ("Thresholds", thresholds.map(|member| item.text(member)).join(" ")),
                ("Delay", set(DELAY)),
                ("Termination", set(TERMINATION)),
            ]);
            put_tags(&mut fields, tags);
            let (id, context) = (arn.to_owned(), String::new());
            let found = ExistingResource { id, fields, owned: true, context };
            Some((text("TargetGroupName"), found))
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        vec![elbv2("DeleteTargetGroup", json!({"TargetGroupArn": found.id}))]
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.vpc]
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        let path = self.health.path.unwrap_or_default();
        fields([
            ("VPC", id(ids, &self.vpc)),
            ("Port", self.port.to_string()),
            ("Protocol", self.protocol.to_owned()),
            ("Health", format!("{} {path}", self.health.protocol).trim().to_owned()),
            ("Thresholds", "2 2 10".to_owned()),
            ("Delay", "30".to_owned()),
            ("Termination", "true".to_owned()),
        ])
    }

    fn create(&self, own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let mut request = json!({"Name": own.name, "VpcId": id(ids, &self.vpc), "Port": self.port,
            "Protocol": self.protocol, "TargetType": "instance", "Tags": tag_pairs(own.tags)});
        self.health.set_parameters(&mut request);
        let id = IdSource::First { list: "TargetGroups", member: "TargetGroupArn" };
        let creation = Creation::new(elbv2("CreateTargetGroup", request), id);
        Ok(creation.with_later(["Delay", "Termination"]))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        update.validate_fields(&["Health", "Thresholds", "Delay", "Termination"])?;
        let mut calls = Vec::new();
        if update.has("Health") || update.has("Thresholds") {
            let mut request = json!({"TargetGroupArn": update.id()});
            self.health.set_parameters(&mut request);
            calls.push(elbv2("ModifyTargetGroup", request));
        }
        if update.has("Delay") || update.has("Termination") {
            let pairs = vec![(DELAY, "30".to_owned()), (TERMINATION, "true".to_owned())];
            let request =
                json!({"TargetGroupArn": update.id(), "Attributes": attribute_pairs(pairs)});
            calls.push(elbv2("ModifyTargetGroupAttributes", request));
        }
        Ok(calls)
    }

    fn set_tags(&self, id: &str, tags: &Tags) -> Call {
        add_tags(id, tags)
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let (mut block, mut health) = (Block::default(), Block::default());
        health.int("healthy_threshold", 2).int("interval", 10).int("unhealthy_threshold", 2);
        health.text("protocol", self.health.protocol);
        health.opt_value("path", self.health.path.map(Expr::text));
        block.text("connection_termination", "true").text("deregistration_delay", "30");
        block.block("health_check", health).text("name", own.name).int("port", self.port);
        block.text("protocol", self.protocol).tags(own.tags);
        block.value("vpc_id", writer.link(&self.vpc));
        Ok(block)
    }
}
