//! The fields of `resource.k8s.io` objects that device allocation reads. `Allocation` is also written.

use std::collections::BTreeMap;

use api_meta::{ObjectMeta, Quantity, null_default};
use serde::{Deserialize, Serialize};
use serde_json::Value;

type Text = Box<str>;

/// The finalizer that keeps an allocated claim until it is deallocated.
pub const CLAIM_FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// A ResourceClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimView {
    /// The object metadata.
    pub metadata: ObjectMeta,
    /// The requested devices.
    pub spec: ResourceClaimSpecView,
    /// The allocation and its users.
    pub status: ResourceClaimStatusView,
}

/// The spec of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimSpecView {
    /// The requests for devices.
    pub devices: DeviceClaimView,
}

/// The requests of a claim, the constraints between their devices, and the drivers' configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClaimView {
    /// The requests.
    #[serde(deserialize_with = "null_default")]
    pub requests: Vec<DeviceRequestView>,
    /// The constraints between devices of different requests.
    #[serde(deserialize_with = "null_default")]
    pub constraints: Vec<DeviceConstraintView>,
    /// Configuration for the drivers.
    #[serde(deserialize_with = "null_default")]
    pub config: Vec<DeviceConfigView>,
}

/// A request: one exact form, or a list of alternatives in order of preference.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceRequestView {
    /// The name of the request, unique in the claim.
    pub name: Text,
    /// The only form of the request.
    pub exactly: Option<ExactRequestView>,
    /// The alternatives; the first that can be met is allocated.
    #[serde(deserialize_with = "null_default")]
    pub first_available: Vec<ExactRequestView>,
}

/// A request for devices of one class, or an alternative of a request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExactRequestView {
    /// The name of the alternative; empty in `exactly`.
    pub name: Text,
    /// The DeviceClass.
    pub device_class_name: Text,
    /// Selectors that a device must match in addition to those of the class.
    #[serde(deserialize_with = "null_default")]
    pub selectors: Vec<DeviceSelectorView>,
    /// `ExactCount` or `All`.
    pub allocation_mode: Text,
    /// The number of devices in mode `ExactCount`.
    pub count: i64,
    /// `true` for access to devices that other claims use.
    pub admin_access: Option<bool>,
    /// The taints that the request tolerates.
    #[serde(deserialize_with = "null_default")]
    pub tolerations: Vec<DeviceTolerationView>,
    /// The capacity to consume from each device.
    pub capacity: Option<CapacityRequestView>,
}

/// The capacity that a request consumes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CapacityRequestView {
    /// Amounts by capacity name.
    #[serde(deserialize_with = "null_default")]
    pub requests: BTreeMap<Text, Quantity>,
}

/// A selector that a device must match.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceSelectorView {
    /// The CEL expression; a selector without one is an error.
    pub cel: Option<CelSelectorView>,
}

/// A CEL expression.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CelSelectorView {
    /// The text of the expression.
    pub expression: Text,
}

/// A toleration of device taints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceTolerationView {
    /// The taint key; empty matches every key.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub key: Text,
    /// `Equal` (the default) or `Exists`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub operator: Text,
    /// The taint value, for `Equal`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub value: Text,
    /// The taint effect; empty matches every effect.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub effect: Text,
    /// The seconds that a NoExecute taint is tolerated; `None` for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

impl DeviceTolerationView {
    /// Reports whether the toleration matches the taint. An empty key or effect matches all.
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

/// A taint of a device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceTaintView {
    /// The taint key.
    pub key: Text,
    /// The taint value.
    pub value: Text,
    /// `NoSchedule` or `NoExecute`. In a rule, `None` has no effect.
    pub effect: Text,
    /// The time at which the taint was added, in RFC 3339.
    pub time_added: Option<Text>,
}

/// A DeviceTaintRule: a taint for all devices that its selector matches.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceTaintRuleView {
    /// The spec of the rule.
    pub spec: DeviceTaintRuleSpecView,
}

/// The spec of a DeviceTaintRule.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceTaintRuleSpecView {
    /// The devices; no devices if `None`.
    pub device_selector: Option<DeviceTaintSelectorView>,
    /// The taint.
    pub taint: DeviceTaintView,
}

/// The devices of a DeviceTaintRule. A criterion that is `None` matches all devices.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceTaintSelectorView {
    /// The driver's name.
    pub driver: Option<Text>,
    /// The pool's name.
    pub pool: Option<Text>,
    /// The device's name.
    pub device: Option<Text>,
}

impl DeviceTaintRuleSpecView {
    /// Reports whether the rule taints a device.
    pub fn concerns(&self, driver: &str, pool: &str, device: &str) -> bool {
        let Some(selector) = &self.device_selector else { return false };
        let matches =
            |wanted: &Option<Text>, name: &str| wanted.as_deref().is_none_or(|w| w == name);
        matches(&selector.driver, driver)
            && matches(&selector.pool, pool)
            && matches(&selector.device, device)
    }
}

/// A constraint on an attribute of the devices of some requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceConstraintView {
    /// The requests concerned, as `request` or `request/alternative`; empty for all.
    #[serde(deserialize_with = "null_default")]
    pub requests: Vec<Text>,
    /// The attribute that must be equal on all devices.
    pub match_attribute: Option<Text>,
    /// The attribute that must be different on all devices.
    pub distinct_attribute: Option<Text>,
}

/// Configuration for a driver. In an allocation, it names its source.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct DeviceConfigView {
    /// `FromClass` or `FromClaim`; empty outside allocations.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub source: Text,
    /// The requests that it applies to; empty for all.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<Text>,
    /// The driver's own parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opaque: Option<Value>,
}

/// The status of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceClaimStatusView {
    /// The allocation; `None` if the claim is not allocated.
    pub allocation: Option<Allocation>,
    /// The users of the claim.
    #[serde(deserialize_with = "null_default")]
    pub reserved_for: Vec<ClaimConsumerView>,
    /// The state of allocated devices, as drivers report it.
    #[serde(deserialize_with = "null_default")]
    pub devices: Vec<AllocatedDeviceView>,
}

/// A user of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimConsumerView {
    /// The uid of the user, usually a Pod.
    pub uid: Text,
}

/// The status of an allocated device, set by its driver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocatedDeviceView {
    /// The driver's name.
    pub driver: Text,
    /// The pool's name.
    pub pool: Text,
    /// The device's name.
    pub device: Text,
    /// The conditions of the device.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<crate::view::ConditionView>,
}

/// `status.allocation` of a claim: its devices and the nodes that can use them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Allocation {
    /// The devices and their configuration.
    pub devices: AllocatedDevices,
    /// The nodes that can use the devices; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<Value>,
    /// The time of the allocation, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation_timestamp: Option<Text>,
}

/// The allocated devices and their configuration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AllocatedDevices {
    /// The allocated devices, one entry for each device or share of a device.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<AllocatedDevice>,
    /// The configuration of the classes and the claim.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<DeviceConfigView>,
}

/// A device, or a share of a device, allocated to a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocatedDevice {
    /// The request, as `request` or `request/alternative`.
    pub request: Text,
    /// The driver's name.
    pub driver: Text,
    /// The pool's name.
    pub pool: Text,
    /// The device's name.
    pub device: Text,
    /// `true` if the device is allocated with admin access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_access: Option<bool>,
    /// The tolerations of the request.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<DeviceTolerationView>,
    /// The conditions that must be true before the Pod is bound.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub binding_conditions: Vec<Text>,
    /// The conditions that make the binding fail.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub binding_failure_conditions: Vec<Text>,
    /// The id of this share of the device. In a new allocation it is present and empty.
    #[serde(rename = "shareID", skip_serializing_if = "Option::is_none")]
    pub share_id: Option<Text>,
    /// The capacity that this share consumes, by name.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub consumed_capacity: BTreeMap<Text, Quantity>,
}

/// A DeviceClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClassView {
    /// The object metadata.
    pub metadata: ObjectMeta,
    /// The selectors and the configuration of the class.
    pub spec: DeviceClassSpecView,
}

/// The spec of a DeviceClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceClassSpecView {
    /// Selectors that a device of the class must match.
    #[serde(deserialize_with = "null_default")]
    pub selectors: Vec<DeviceSelectorView>,
    /// Configuration for the drivers.
    #[serde(deserialize_with = "null_default")]
    pub config: Vec<DeviceConfigView>,
    /// The extended resource that devices of the class can serve.
    pub extended_resource_name: Option<Text>,
}

/// A ResourceSlice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceSliceView {
    /// The spec of the slice.
    pub spec: ResourceSliceSpecView,
}

/// The spec of a ResourceSlice: devices of a pool, or the counters that they consume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceSliceSpecView {
    /// The driver's name.
    pub driver: Text,
    /// The pool of the slice.
    pub pool: ResourcePoolView,
    /// The nodes that can use the devices.
    #[serde(flatten)]
    pub nodes: DeviceNodesView,
    /// `true` if each device names its own nodes.
    pub per_device_node_selection: Option<bool>,
    /// The devices.
    #[serde(deserialize_with = "null_default")]
    pub devices: Vec<DeviceView>,
    /// The counter sets that devices consume.
    #[serde(deserialize_with = "null_default")]
    pub shared_counters: Vec<CounterSetView>,
}

/// The pool of a slice and its generation.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePoolView {
    /// The pool's name.
    pub name: Text,
    /// The generation; only slices of the latest one count.
    pub generation: i64,
    /// The number of slices of the pool in this generation.
    pub resource_slice_count: i64,
}

/// The nodes that can use devices; none if no field is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceNodesView {
    /// A single node.
    pub node_name: Option<Text>,
    /// A node selector.
    pub node_selector: Option<Value>,
    /// `true` for all nodes.
    pub all_nodes: Option<bool>,
}

/// A device in a slice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceView {
    /// The device's name, unique in the pool.
    pub name: Text,
    /// Attributes by name, with or without a domain.
    #[serde(deserialize_with = "null_default")]
    pub attributes: BTreeMap<Text, DeviceAttributeView>,
    /// Capacities by name.
    #[serde(deserialize_with = "null_default")]
    pub capacity: BTreeMap<Text, DeviceCapacityView>,
    /// The counters that the device consumes while it is allocated.
    #[serde(deserialize_with = "null_default")]
    pub consumes_counters: Vec<CounterConsumptionView>,
    /// The device's own nodes, if the slice selects nodes per device.
    #[serde(flatten)]
    pub nodes: DeviceNodesView,
    /// The taints of the device.
    #[serde(deserialize_with = "null_default")]
    pub taints: Vec<DeviceTaintView>,
    /// `true` if the allocation must be limited to the chosen node.
    pub binds_to_node: Option<bool>,
    /// The conditions that must be true before the Pod is bound.
    #[serde(deserialize_with = "null_default")]
    pub binding_conditions: Vec<Text>,
    /// The conditions that make the binding fail.
    #[serde(deserialize_with = "null_default")]
    pub binding_failure_conditions: Vec<Text>,
    /// `true` if several requests may share the device.
    pub allow_multiple_allocations: Option<bool>,
}

/// The value of an attribute; one field is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DeviceAttributeView {
    /// An integer.
    pub int: Option<i64>,
    /// A boolean.
    pub bool: Option<bool>,
    /// A string.
    pub string: Option<Text>,
    /// A semantic version.
    pub version: Option<Text>,
}

/// A capacity of a device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceCapacityView {
    /// The total amount.
    pub value: Quantity,
    /// The amounts that requests may consume; `None` for any amount.
    pub request_policy: Option<RequestPolicyView>,
}

/// The amounts of a capacity that requests may consume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestPolicyView {
    /// The amount for a request that names none.
    pub default: Option<Quantity>,
    /// The allowed amounts.
    #[serde(deserialize_with = "null_default")]
    pub valid_values: Vec<Quantity>,
    /// The allowed range.
    pub valid_range: Option<RequestRangeView>,
}

/// A range of allowed amounts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RequestRangeView {
    /// The smallest amount.
    pub min: Option<Quantity>,
    /// The largest amount.
    pub max: Option<Quantity>,
    /// The distance between two allowed amounts.
    pub step: Option<Quantity>,
}

/// A set of counters that devices of a pool consume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CounterSetView {
    /// The name of the set.
    pub name: Text,
    /// Counters by name.
    #[serde(deserialize_with = "null_default")]
    pub counters: BTreeMap<Text, CounterView>,
}

/// The counters of a set that a device consumes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CounterConsumptionView {
    /// The name of the set.
    pub counter_set: Text,
    /// Amounts by counter name.
    #[serde(deserialize_with = "null_default")]
    pub counters: BTreeMap<Text, CounterView>,
}

/// A counter's amount.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CounterView {
    /// The amount.
    pub value: Quantity,
}
