//! The kinds of resources on GCE, and references to resources.

/// Declares the kinds with the type in Terraform, and the attribute by which other resources refer to one.
macro_rules! kinds {
    ($($kind:ident $terraform:literal $attribute:literal,)*) => {
        /// The kinds of resources. Kind and name identify a resource.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $($kind,)*
        }

        impl Kind {
            /// Returns the kind's type in Terraform's provider.
            pub(crate) fn terraform_type(self) -> &'static str {
                match self {
                    $(Self::$kind => $terraform,)*
                }
            }

            /// Returns the attribute by which other resources refer to one of this kind.
            pub(crate) fn attribute(self) -> &'static str {
                match self {
                    $(Self::$kind => $attribute,)*
                }
            }
        }
    };
}

kinds! {
    Network "google_compute_network" "name",
    Subnetwork "google_compute_subnetwork" "name",
    Router "google_compute_router" "name",
    RouterNat "google_compute_router_nat" "name",
    FirewallRule "google_compute_firewall" "name",
    Address "google_compute_address" "address",
    HealthCheck "google_compute_region_health_check" "id",
    HttpHealthCheck "google_compute_http_health_check" "self_link",
    BackendService "google_compute_region_backend_service" "id",
    TargetPool "google_compute_target_pool" "self_link",
    ForwardingRule "google_compute_forwarding_rule" "self_link",
    Disk "google_compute_disk" "name",
    InstanceTemplate "google_compute_instance_template" "self_link",
    InstanceGroupManager "google_compute_instance_group_manager" "instance_group",
    ServiceAccount "google_service_account" "email",
    ProjectBinding "google_project_iam_binding" "id",
    BucketMember "google_storage_bucket_iam_member" "id",
    S3Object "aws_s3_object" "id",
    GsObject "google_storage_bucket_object" "id",
}

/// A reference to a resource of the model.
pub type Ref = crate::reference::Ref<Kind>;
