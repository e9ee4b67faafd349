//! What of `resource.k8s.io` decides about devices; an allocation is also written.

use std::collections::BTreeMap;

use api_meta::{ObjectMeta, Quantity, null_default};
use serde::{Deserialize, Serialize};
use serde_json::Value;

type Text = Box<str>;

/// Keeps a claim with devices until they are given back.
pub const CLAIM_FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// A ResourceClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimView {
    pub metadata: ObjectMeta,
    pub spec: ResourceClaimSpecView,
    pub status: ResourceClaimStatusView,
}

/// What a claim asks for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimSpecView {
    pub devices: DeviceClaimView,
}

/// Requests, what must hold between what they get, and words for drivers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClaimView {
    #[serde(deserialize_with = "null_default")]
    pub requests: Vec<DeviceRequestView>,
    #[serde(deserialize_with = "null_default")]
    pub constraints: Vec<DeviceConstraintView>,
    #[serde(deserialize_with = "null_default")]
    pub config: Vec<DeviceConfigView>,
}

/// One request, or several of which the first that can be met is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceRequestView {
    pub name: Text,
    pub exactly: Option<ExactRequestView>,
    #[serde(deserialize_with = "null_default")]
    pub first_available: Vec<ExactRequestView>,
}

/// How many devices of which class; a name is an alternative's.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExactRequestView {
    pub name: Text,
    pub device_class_name: Text,
    #[serde(deserialize_with = "null_default")]
    pub selectors: Vec<DeviceSelectorView>,
    pub allocation_mode: Text,
    pub count: i64,
    pub admin_access: Option<bool>,
    #[serde(deserialize_with = "null_default")]
    pub tolerations: Vec<DeviceTolerationView>,
    pub capacity: Option<CapacityRequestView>,
}

/// How much of each capacity is wanted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CapacityRequestView {
    #[serde(deserialize_with = "null_default")]
    pub requests: BTreeMap<Text, Quantity>,
}

/// An expression that a device must meet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceSelectorView {
    pub cel: Option<CelSelectorView>,
}

/// The expression's text.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CelSelectorView {
    pub expression: Text,
}

/// Which taints of a device do not matter to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceTolerationView {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub key: Text,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub operator: Text,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub value: Text,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub effect: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

impl DeviceTolerationView {
    /// Whether it covers the taint. An empty key or effect is any.
    pub fn tolerates(&self, taint: &DeviceTaintView) -> bool {
        (self.effect.is_empty() || self.effect == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && match &*self.operator {
                "" | "Equal" => self.value == taint.value,
                "Exists" => true,
                _ => false,
            }
    }
}

/// What keeps claims off a device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceTaintView {
    pub key: Text,
    pub value: Text,
    pub effect: Text,
    pub time_added: Option<Text>,
}

/// An attribute that the devices of some requests have in common, or each its own value of.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceConstraintView {
    /// All requests when empty; an alternative is `request/alternative`.
    #[serde(deserialize_with = "null_default")]
    pub requests: Vec<Text>,
    pub match_attribute: Option<Text>,
    pub distinct_attribute: Option<Text>,
}

/// Words for a driver; in an allocation with where they are from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct DeviceConfigView {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub source: Text,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opaque: Option<Value>,
}

/// What a claim has, and who has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceClaimStatusView {
    pub allocation: Option<Allocation>,
    #[serde(deserialize_with = "null_default")]
    pub reserved_for: Vec<ClaimConsumerView>,
    #[serde(deserialize_with = "null_default")]
    pub devices: Vec<AllocatedDeviceView>,
}

/// Somebody who uses a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimConsumerView {
    pub uid: Text,
}

/// What a driver says of an allocated device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocatedDeviceView {
    pub driver: Text,
    pub pool: Text,
    pub device: Text,
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<crate::view::ConditionView>,
}

/// `status.allocation` of a claim: its devices, and the nodes that they can be used on.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Allocation {
    pub devices: AllocatedDevices,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation_timestamp: Option<Text>,
}

/// Devices, and the words for their drivers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AllocatedDevices {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<AllocatedDevice>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<DeviceConfigView>,
}

/// A device, or a share of one, for a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocatedDevice {
    /// `request`, or `request/alternative`.
    pub request: Text,
    pub driver: Text,
    pub pool: Text,
    pub device: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_access: Option<bool>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<DeviceTolerationView>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub binding_conditions: Vec<Text>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub binding_failure_conditions: Vec<Text>,
    /// What tells one share of the device from the others. Of a new allocation it is there and empty.
    #[serde(rename = "shareID", skip_serializing_if = "Option::is_none")]
    pub share_id: Option<Text>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub consumed_capacity: BTreeMap<Text, Quantity>,
}

/// A DeviceClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClassView {
    pub spec: DeviceClassSpecView,
}

/// Which devices are of the class, and words for their drivers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClassSpecView {
    #[serde(deserialize_with = "null_default")]
    pub selectors: Vec<DeviceSelectorView>,
    #[serde(deserialize_with = "null_default")]
    pub config: Vec<DeviceConfigView>,
}

/// A ResourceSlice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceSliceView {
    pub spec: ResourceSliceSpecView,
}

/// A part of a pool: devices, or the counters that they draw on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceSliceSpecView {
    pub driver: Text,
    pub pool: ResourcePoolView,
    #[serde(flatten)]
    pub nodes: DeviceNodesView,
    pub per_device_node_selection: Option<bool>,
    #[serde(deserialize_with = "null_default")]
    pub devices: Vec<DeviceView>,
    #[serde(deserialize_with = "null_default")]
    pub shared_counters: Vec<CounterSetView>,
}

/// Which pool a slice is of, and how many slices the pool of this generation has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePoolView {
    pub name: Text,
    pub generation: i64,
    pub resource_slice_count: i64,
}

/// The nodes that devices can be used on; none when nothing is said.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceNodesView {
    pub node_name: Option<Text>,
    pub node_selector: Option<Value>,
    pub all_nodes: Option<bool>,
}

/// A device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceView {
    pub name: Text,
    #[serde(deserialize_with = "null_default")]
    pub attributes: BTreeMap<Text, DeviceAttributeView>,
    #[serde(deserialize_with = "null_default")]
    pub capacity: BTreeMap<Text, DeviceCapacityView>,
    #[serde(deserialize_with = "null_default")]
    pub consumes_counters: Vec<CounterConsumptionView>,
    #[serde(flatten)]
    pub nodes: DeviceNodesView,
    #[serde(deserialize_with = "null_default")]
    pub taints: Vec<DeviceTaintView>,
    pub binds_to_node: Option<bool>,
    #[serde(deserialize_with = "null_default")]
    pub binding_conditions: Vec<Text>,
    #[serde(deserialize_with = "null_default")]
    pub binding_failure_conditions: Vec<Text>,
    pub allow_multiple_allocations: Option<bool>,
}

/// The value of an attribute, of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DeviceAttributeView {
    pub int: Option<i64>,
    pub bool: Option<bool>,
    pub string: Option<Text>,
    pub version: Option<Text>,
}

/// How much a device has of something, and in which amounts it is given out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceCapacityView {
    pub value: Quantity,
    pub request_policy: Option<RequestPolicyView>,
}

/// In which amounts a capacity is given out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestPolicyView {
    pub default: Option<Quantity>,
    #[serde(deserialize_with = "null_default")]
    pub valid_values: Vec<Quantity>,
    pub valid_range: Option<RequestRangeView>,
}

/// Amounts from a least to a most in steps.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RequestRangeView {
    pub min: Option<Quantity>,
    pub max: Option<Quantity>,
    pub step: Option<Quantity>,
}

/// Counters that the devices of a pool draw on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CounterSetView {
    pub name: Text,
    #[serde(deserialize_with = "null_default")]
    pub counters: BTreeMap<Text, CounterView>,
}

/// What a device draws from a set of counters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CounterConsumptionView {
    pub counter_set: Text,
    #[serde(deserialize_with = "null_default")]
    pub counters: BTreeMap<Text, CounterView>,
}

/// A counter's amount.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CounterView {
    pub value: Quantity,
}
