//! The IAM policies of each role of machines, and of service accounts with a role of their own.

use api_meta::Tree as _;
use serde_json::json;

use super::{
    context::Context,
    dns,
    policy::{Policy, Statement},
};
use crate::{
    boot::asks_kops_controller,
    cluster::{Cluster as _, Dns},
    error::Error,
};

/// Returns the policy of a role's machines. `hooked` is `true` if some of them complete a warm pool's lifecycle hook.
pub(super) fn of_role(context: &Context<'_>, role: &str, hooked: bool) -> Result<String, Error> {
    let mut policy = Policy::new(context.name, &context.partition, &context.region);
    if role == "Bastion" {
        policy.grant("bastion");
        return Ok(policy.document());
    }
    let master = role == "ControlPlane";
    let has = |network: &str| context.spec.has(&format!("networking.{network}"));
    if master {
        add_etcd(context, &mut policy);
    }
    policy.grant("machine");
    if hooked && !master {
        policy.grant("lifecycle");
    }
    if context.cluster.is_ipv6_only() {
        policy.grant("ipam-machine");
        if master {
            policy.grant("ipam");
        }
    }
    if role != "Node" {
        add_store(context, &mut policy, role)?;
        policy.grant("keys");
        if context.spec.flag("encryptionConfig") {
            policy.free_keys();
        }
    } else if !asks_kops_controller(context.cluster) {
        policy.grant("gossip");
        add_store(context, &mut policy, role)?;
    }
    if master {
        add_dns(context, &mut policy)?;
        if !context.has_pod_roles() {
            add_pods(context, &mut policy);
        }
    }
    for (part, holds) in [
        ("registry", context.spec.flag("iam.allowContainerRegistry")),
        ("registry-mirrors", context.spec.flag("containerd.useECRCredentialsForMirrors")),
        ("cilium-eni", role != "Node" && context.spec.text("networking.cilium.ipam") == "eni"),
        ("calico", checks_source(context)),
        ("source-check", has("kindnet") || (role == "Node" && has("kubeRouter"))),
    ] {
        if holds {
            policy.grant(part);
        }
    }
    if has("amazonVPC") {
        policy.grant("amazon-vpc");
        let interfaces = [policy.ec2("network-interface")];
        policy.push(Statement::allow_listed(&["ec2:CreateTags"], &interfaces));
    }
    Ok(policy.document())
}

/// Reports whether Calico disables the source/destination check of the machines' interfaces.
fn checks_source(context: &Context<'_>) -> bool {
    context.spec.has("networking.calico")
        && context.spec.text("networking.calico.awsSrcDstCheck") != "DoNothing"
        && !context.cluster.is_ipv6_only()
}

fn add_etcd(context: &Context<'_>, policy: &mut Policy<'_>) {
    policy.grant("etcd");
    let condition = json!({"StringEquals": {
        "aws:ResourceTag/k8s.io/role/master": "1", "aws:ResourceTag/KubernetesCluster": context.name,
    }});
    let all = Statement::allow_listed(&[], &["*".to_owned()]);
    policy.push(Statement { action: "ec2:AttachVolume".into(), ..all }.when(condition));
}

/// Allows the actions of Pods on control planes, if the Pods have no roles of their own.
fn add_pods(context: &Context<'_>, policy: &mut Policy<'_>) {
    add_disks(context, policy);
    add_cloud_controller(context, policy);
    if context.spec.flag("cloudProvider.aws.loadBalancerController.enabled") {
        add_load_balancers(context, policy);
    }
    policy.grant("autoscaler");
    if context.has_termination_queue() {
        policy.grant("terminations");
    }
}

fn add_disks(context: &Context<'_>, policy: &mut Policy<'_>) {
    policy.grant("keys");
    let kinds = ["volume", "snapshot"];
    if context.spec.flag("snapshotController.enabled") {
        policy.grant("snapshots");
        policy.make(&["ec2:CreateSnapshot"], &kinds);
        let snapshots = Statement::allow_listed(&[], &[policy.ec2("snapshot")]);
        let snapshots = Statement { action: "ec2:CreateVolume".into(), ..snapshots };
        policy.push(snapshots.when(policy.owned()));
    }
    policy.grant("disks");
    policy.make(&["ec2:CopyVolumes", "ec2:CreateVolume"], &kinds);
}

fn add_cloud_controller(context: &Context<'_>, policy: &mut Policy<'_>) {
    policy.grant("cloud-controller");
    if context.spec.text("cloudProvider.aws.nlbSecurityGroupMode") == "Managed" {
        policy.grant("cloud-controller-groups");
    }
    if context.spec.has("networking.kubenet") {
        policy.grant("cloud-controller-routes");
    }
    policy.make(&["ec2:CreateSecurityGroup"], &["security-group"]);
}

fn add_load_balancers(context: &Context<'_>, policy: &mut Policy<'_>) {
    policy.grant("load-balancers");
    let spec = "cloudProvider.aws.loadBalancerController";
    for (field, part) in [("WAF", "waf"), ("WAFv2", "wafv2"), ("Shield", "shield")] {
        if context.spec.flag(&format!("{spec}.enable{field}")) {
            policy.grant(&format!("load-balancers-{part}"));
        }
    }
    policy.make(&["ec2:CreateSecurityGroup"], &["security-group"]);
}

fn add_dns(context: &Context<'_>, policy: &mut Policy<'_>) -> Result<(), Error> {
    if !context.cluster.publishes_dns() {
        return Ok(());
    }
    let partition = &context.partition;
    let zone = format!("arn:{partition}:route53:::hostedzone/{}", dns::zone_id(context)?);
    let records = [
        "route53:ChangeResourceRecordSets",
        "route53:GetHostedZone",
        "route53:ListResourceRecordSets",
    ];
    let changes = format!("arn:{partition}:route53:::change/*");
    let lists = ["route53:ListHostedZones", "route53:ListTagsForResource"];
    policy.push(Statement::allow_listed(&records, &[zone]));
    policy.push(Statement::allow_listed(&["route53:GetChange"], &[changes]));
    policy.push(Statement::allow_listed(&lists, &["*".to_owned()]));
    Ok(())
}

/// Allows access to the parts of the state store that a role reads, and to etcd's backups.
fn add_store(context: &Context<'_>, policy: &mut Policy<'_>, role: &str) -> Result<(), Error> {
    let fields = ["keypairs", "secrets", "base"];
    let with_slash = |url: &str| format!("{}/", url.trim_end_matches('/'));
    let urls = fields.map(|field| context.spec.text(&format!("configStore.{field}")));
    let mut urls: Vec<String> =
        urls.into_iter().filter(|url| !url.is_empty()).map(with_slash).collect();
    urls.sort();
    urls.dedup();
    let all = urls.clone();
    urls.retain(|url| !all.iter().any(|other| url != other && url.starts_with(other)));
    let reads: &[&str] = match role {
        "Node" => &["/cluster-completed.spec", "/igconfig/node/*"],
        _ => &["/*"],
    };
    let mut buckets = Vec::new();
    let place = |url: &str| {
        let store = context.place(url)?;
        let bucket = format!("arn:{}:s3:::{}", context.partition, store.bucket);
        let place = format!("{bucket}/{}", store.prefix).trim_end_matches('/').to_owned();
        Ok::<_, Error>((bucket, place))
    };
    for url in urls {
        let (bucket, place) = place(&url)?;
        let reads: Vec<String> = reads.iter().map(|path| format!("{place}{path}")).collect();
        let objects = Statement::allow(&[], &reads);
        policy.push(Statement { action: json!(["s3:Get*"]), ..objects });
        buckets.push(bucket);
    }
    let stores =
        context.spec.items("etcdClusters").iter().map(|etcd| etcd.text("backups.backupStore"));
    let mut stores: Vec<&str> =
        stores.filter(|url| role == "ControlPlane" && !url.is_empty()).collect();
    stores.dedup();
    for url in stores {
        let (bucket, place) = place(url)?;
        let actions = ["s3:DeleteObject", "s3:DeleteObjectVersion", "s3:GetObject", "s3:PutObject"];
        policy.push(Statement::allow(&actions, &[format!("{place}/*")]));
        buckets.push(bucket);
    }
    buckets.sort();
    buckets.dedup();
    for bucket in buckets {
        let actions = [
            "s3:GetBucketLocation",
            "s3:GetEncryptionConfiguration",
            "s3:ListBucket",
            "s3:ListBucketVersions",
        ];
        let whole = Statement::allow(&actions, &[]);
        policy.push(Statement { resource: json!([bucket]), ..whole });
    }
    Ok(())
}

/// Returns the service accounts of add-ons with roles: the name and the policy.
pub(super) fn of_pods(context: &Context<'_>) -> Result<Vec<(&'static str, String)>, Error> {
    let spec = context.spec;
    let roles = context.has_pod_roles();
    let dns = context.cluster.dns() != Dns::None;
    let provider = spec.text("externalDNS.provider");
    let aws = |field: &str| spec.opt_at(&format!("cloudProvider.aws.{field}"));
    let publishes = context.cluster.publishes_dns();
    let zones: Vec<&str> = spec.texts("certManager.hostedZoneIDs").collect();
    let accounts = [
        ("dns-controller", roles && dns && publishes && ["", "dns-controller"].contains(&provider)),
        ("external-dns", roles && dns && provider == "external-dns"),
        ("cluster-autoscaler", roles && spec.flag("clusterAutoscaler.enabled")),
        (
            "cert-manager",
            !zones.is_empty()
                && spec.flag("certManager.enabled")
                && spec.opt_flag("certManager.managed") != Some(false),
        ),
        (
            "aws-node-termination-handler",
            roles && spec.flag("cloudProvider.aws.nodeTerminationHandler.enabled"),
        ),
        (
            "aws-load-balancer-controller",
            roles && spec.flag("cloudProvider.aws.loadBalancerController.enabled"),
        ),
        ("kube-router", roles && spec.has("networking.kubeRouter")),
        ("aws-cloud-controller-manager", roles && spec.has("cloudControllerManager")),
        ("ebs-csi-controller-sa", roles && aws("ebsCSIDriver.managed").is_none_or(|m| m != false)),
        ("karpenter", roles && spec.flag("karpenter.enabled")),
    ];
    let accounts = accounts.into_iter().filter(|(_, needed)| *needed);
    accounts.map(|(name, _)| Ok((name, of_pod(context, name, &zones)?))).collect()
}

fn of_pod(context: &Context<'_>, name: &str, zones: &[&str]) -> Result<String, Error> {
    let mut policy = Policy::new(context.name, &context.partition, &context.region);
    match name {
        "dns-controller" | "external-dns" => add_dns(context, &mut policy)?,
        "cert-manager" => add_certificates(context, &mut policy, zones),
        "aws-load-balancer-controller" => add_load_balancers(context, &mut policy),
        "aws-cloud-controller-manager" => add_cloud_controller(context, &mut policy),
        "ebs-csi-controller-sa" => add_disks(context, &mut policy),
        "cluster-autoscaler" => policy.grant("autoscaler"),
        "aws-node-termination-handler" => policy.grant("terminations"),
        "karpenter" => {
            policy.grant("karpenter");
            let keyed = |group: &kops_api::Object| {
                group.spec.text("manager") == "Karpenter"
                    && group.spec.flag("rootVolume.encryption")
                    && !group.spec.text("rootVolume.encryptionKey").is_empty()
            };
            if context.groups.iter().any(keyed) {
                policy.grant("keys");
            }
        }
        other => policy.grant(other),
    }
    Ok(policy.document())
}

/// Allows cert-manager to solve DNS-01 challenges.
fn add_certificates(context: &Context<'_>, policy: &mut Policy<'_>, zones: &[&str]) {
    let partition = &context.partition;
    let zone = |id: &&str| format!("arn:{partition}:route53:::hostedzone/{id}");
    let zones: Vec<String> = zones.iter().map(zone).collect();
    let records = |action: &str| {
        let all = Statement::allow_listed(&[], &zones);
        Statement { action: action.into(), ..all }
    };
    let condition = json!({
        "ForAllValues:StringEquals": {"route53:ChangeResourceRecordSetsRecordTypes": ["TXT"]},
        "ForAllValues:StringLike": {
            "route53:ChangeResourceRecordSetsNormalizedRecordNames": ["_acme-challenge.*"],
        },
    });
    policy.push(records("route53:ListResourceRecordSets"));
    policy.push(records("route53:ChangeResourceRecordSets").when(condition));
    let changes = format!("arn:{partition}:route53:::change/*");
    policy.push(Statement::allow_listed(&["route53:GetChange"], &[changes]));
    policy.push(Statement::allow_listed(&["route53:ListHostedZonesByName"], &["*".to_owned()]));
}
