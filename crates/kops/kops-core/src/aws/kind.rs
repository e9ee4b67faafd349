//! The kinds of resources in AWS, and references to resources.

use std::collections::BTreeMap;

/// Tags by key.
pub type Tags = BTreeMap<String, String>;

/// Declares the kinds with upstream's name and the type in Terraform.
macro_rules! kinds {
    ($($kind:ident $task:literal $terraform:literal,)*) => {
        /// The kinds of resources. Kind and name identify a resource.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $($kind,)*
        }

        impl Kind {
            /// All kinds, in order.
            pub(crate) const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Returns upstream's name of the kind.
            pub(crate) fn task(self) -> &'static str {
                match self {
                    $(Self::$kind => $task,)*
                }
            }

            /// Returns the kind's type in Terraform's provider.
            pub(crate) fn terraform_type(self) -> &'static str {
                match self {
                    $(Self::$kind => $terraform,)*
                }
            }
        }
    };
}

kinds! {
    Vpc "VPC" "aws_vpc",
    VpcCidr "VPCCIDRBlock" "aws_vpc_ipv4_cidr_block_association",
    DhcpOptions "DHCPOptions" "aws_vpc_dhcp_options",
    DhcpOptionsAssociation "VPCDHCPOptionsAssociation" "aws_vpc_dhcp_options_association",
    InternetGateway "InternetGateway" "aws_internet_gateway",
    EgressOnlyGateway "EgressOnlyInternetGateway" "aws_egress_only_internet_gateway",
    Subnet "Subnet" "aws_subnet",
    RouteTable "RouteTable" "aws_route_table",
    RouteTableAssociation "RouteTableAssociation" "aws_route_table_association",
    Route "Route" "aws_route",
    ElasticIp "ElasticIP" "aws_eip",
    NatGateway "NatGateway" "aws_nat_gateway",
    SecurityGroup "SecurityGroup" "aws_security_group",
    SecurityGroupRule "SecurityGroupRule" "aws_security_group_rule",
    Volume "EBSVolume" "aws_ebs_volume",
    Role "IAMRole" "aws_iam_role",
    RolePolicy "IAMRolePolicy" "aws_iam_role_policy",
    RolePolicyAttachment "IAMRolePolicy" "aws_iam_role_policy_attachment",
    InstanceProfile "IAMInstanceProfile" "aws_iam_instance_profile",
    OidcProvider "IAMOIDCProvider" "aws_iam_openid_connect_provider",
    SshKey "SSHKey" "aws_key_pair",
    LaunchTemplate "LaunchTemplate" "aws_launch_template",
    ScalingGroup "AutoscalingGroup" "aws_autoscaling_group",
    LifecycleHook "AutoscalingLifecycleHook" "aws_autoscaling_lifecycle_hook",
    ClassicBalancer "ClassicLoadBalancer" "aws_elb",
    NetworkBalancer "NetworkLoadBalancer" "aws_lb",
    Listener "NetworkLoadBalancerListener" "aws_lb_listener",
    TargetGroup "TargetGroup" "aws_lb_target_group",
    Zone "DNSZone" "aws_route53_zone",
    ZoneAssociation "DNSZone" "aws_route53_zone_association",
    Record "DNSName" "aws_route53_record",
    Queue "SQS" "aws_sqs_queue",
    EventRule "EventBridgeRule" "aws_cloudwatch_event_rule",
    EventTarget "EventBridgeTarget" "aws_cloudwatch_event_target",
    StoreObject "ManagedFile" "aws_s3_object",
}

/// A reference to a resource of the model.
pub type Ref = crate::reference::Ref<Kind>;
