//! The table of all kinds of resources: their types and operations.

use std::borrow::Borrow;

use super::{
    answers::Answers,
    call::Call,
    dns::{Record, Zone, ZoneAssociation},
    event::{EventRule, EventTarget, Queue},
    existing::{ExistingResource, IdentifiedResource},
    gateway::{EgressOnlyGateway, ElasticIp, InternetGateway, NatGateway},
    iam::{InstanceProfile, OidcProvider, Role, RolePolicy, RolePolicyAttachment},
    kind::{Kind, Ref, Tags},
    launch_template::LaunchTemplate,
    lifecycle_hook::LifecycleHook,
    listener::{Listener, TargetGroup},
    load_balancer::{ClassicBalancer, NetworkBalancer},
    network::{DhcpOptions, DhcpOptionsAssociation, Vpc, VpcCidr},
    operations::{Header, Operations},
    route::{Route, RouteTable, RouteTableAssociation},
    scaling_group::ScalingGroup,
    scope::Scope,
    security_group::{SecurityGroup, SecurityGroupRule},
    ssh_key::SshKey,
    store_object::StoreObject,
    subnet::Subnet,
    volume::Volume,
};

/// A resource in AWS.
#[derive(Clone, Debug)]
pub struct Resource {
    /// The name, unique within the kind.
    pub name: String,
    /// The ID of an existing resource, which the cluster only uses; `None` for one that it creates.
    pub shared: Option<String>,
    /// The tags.
    pub tags: Tags,
    /// The kind-specific part.
    pub body: Body,
}

impl Resource {
    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.body.kind()
    }

    /// Returns the reference of the resource.
    pub fn reference(&self) -> Ref {
        Ref::new(self.kind(), self.name.clone())
    }

    /// Returns the kind-independent part.
    pub(crate) fn metadata(&self) -> Header<'_> {
        Header { kind: self.kind(), name: &self.name, tags: &self.tags }
    }
}

/// The operations of a kind that need no resource of the model.
pub(crate) struct KindOperations {
    /// [`Operations::queries`].
    pub(crate) queries: fn(&Scope, &Answers) -> Vec<Call>,
    /// [`Operations::find_existing`].
    pub(crate) find_existing: fn(&Scope, &Answers) -> Vec<IdentifiedResource>,
    /// [`Operations::delete`].
    pub(crate) delete: fn(&str, &ExistingResource) -> Vec<Call>,
    /// [`Operations::terraform_name`].
    pub(crate) terraform_name: fn(&str) -> String,
    /// [`Operations::terraform_reference`].
    pub(crate) terraform_reference: fn() -> &'static str,
}

impl KindOperations {
    fn of<T: Operations>() -> Self {
        Self {
            queries: T::queries,
            find_existing: T::find_existing,
            delete: T::delete,
            terraform_name: T::terraform_name,
            terraform_reference: T::terraform_reference,
        }
    }
}

/// Declares the kinds with the types of their bodies.
macro_rules! bodies {
    ($($kind:ident($body:ty),)*) => {
        /// The kind-specific part of a resource.
        #[derive(Clone, Debug)]
        pub enum Body {
            $($kind($body),)*
        }

        impl Body {
            /// Returns the kind of the resource.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Self::$kind(_) => Kind::$kind,)*
                }
            }

            /// Returns the operations of the resource.
            pub(crate) fn operations(&self) -> &dyn Operations {
                match self {
                    $(Self::$kind(body) => Borrow::<$kind>::borrow(body),)*
                }
            }
        }

        impl Kind {
            /// Returns the operations of the kind.
            pub(crate) fn operations(self) -> KindOperations {
                match self {
                    $(Self::$kind => KindOperations::of::<$kind>(),)*
                }
            }
        }

        $(impl From<$kind> for Body {
            fn from(body: $kind) -> Self {
                Self::$kind(body.into())
            }
        })*
    };
}

bodies! {
    Vpc(Vpc),
    VpcCidr(VpcCidr),
    DhcpOptions(DhcpOptions),
    DhcpOptionsAssociation(DhcpOptionsAssociation),
    InternetGateway(InternetGateway),
    EgressOnlyGateway(EgressOnlyGateway),
    Subnet(Subnet),
    RouteTable(RouteTable),
    RouteTableAssociation(RouteTableAssociation),
    Route(Route),
    ElasticIp(ElasticIp),
    NatGateway(NatGateway),
    SecurityGroup(SecurityGroup),
    SecurityGroupRule(SecurityGroupRule),
    Volume(Volume),
    Role(Role),
    RolePolicy(RolePolicy),
    RolePolicyAttachment(RolePolicyAttachment),
    InstanceProfile(InstanceProfile),
    OidcProvider(OidcProvider),
    SshKey(SshKey),
    LaunchTemplate(Box<LaunchTemplate>),
    ScalingGroup(Box<ScalingGroup>),
    LifecycleHook(LifecycleHook),
    ClassicBalancer(Box<ClassicBalancer>),
    NetworkBalancer(Box<NetworkBalancer>),
    Listener(Listener),
    TargetGroup(TargetGroup),
    Zone(Zone),
    ZoneAssociation(ZoneAssociation),
    Record(Record),
    Queue(Queue),
    EventRule(EventRule),
    EventTarget(EventTarget),
    StoreObject(StoreObject),
}

impl Body {
    /// Returns the resources that must exist before this one.
    pub fn refs(&self) -> Vec<&Ref> {
        self.operations().refs()
    }
}
