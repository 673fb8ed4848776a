//! What every back end must do: one list of functions over a device.
//!
//! A back end's test file calls [`conformance!`] with a way to open its device. Each case gets a
//! fresh device and must leave nothing behind.

// Not every back end's test file uses all of it.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod access;
pub mod arrays;
pub mod errors;
pub mod kernels;
pub mod memory;
pub mod numbers;
pub mod order;
pub mod traces;

use aquifer::prelude::*;

/// A fresh device for a case, or none where this machine has none of its kind.
pub struct Opened {
    device: Option<Device>,
    /// Called when the case is done: what the device's own checks have found.
    complaints: Box<dyn Fn() -> Vec<String>>,
}

impl From<Device> for Opened {
    fn from(device: Device) -> Self {
        Self { device: Some(device), complaints: Box::new(Vec::new) }
    }
}

impl Opened {
    /// None of its kind is here: the cases say so, and fail where it is required to be.
    pub fn missing(kind: &str, why: &str) -> Self {
        let required = std::env::var("AQUIFER_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|name| name == kind), "{kind} is required: {why}");
        println!("skipped: no {kind} device: {why}");
        Self { device: None, complaints: Box::new(Vec::new) }
    }

    /// With checks of the device's own.
    pub fn checked(device: Device, complaints: impl Fn() -> Vec<String> + 'static) -> Self {
        Self { device: Some(device), complaints: Box::new(complaints) }
    }
}

/// Another device of the same kind.
pub fn another(device: &Device) -> Result<Device> {
    Device::named(device.backend())
}

/// Runs a part of a case that is of one element type: where the device lacks it, that is an error
/// that names it (rule E.5).
pub fn with<T: aquifer::Element>(device: &Device, part: impl FnOnce() -> Result<()>) -> Result<()> {
    if device.supports(T::DTYPE) {
        return part();
    }
    let error = Array::<T>::zeros(device, [1]).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Dtype);
    assert!(error.to_string().contains(&T::DTYPE.to_string()), "{error}");
    Ok(())
}

/// Runs a case on a fresh device and checks that nothing is left (rule J.2), and that its trace
/// replays to the same figures.
pub fn run(opened: impl Into<Opened>, case: fn(&Device) -> Result<()>) {
    let Opened { device, complaints } = opened.into();
    let Some(device) = device else { return };
    device.trace().start().unwrap();
    case(&device).unwrap();
    end(&device);
    if let Some(recording) = device.trace().take().unwrap() {
        let trace = recording.decode().unwrap().trace;
        let verified = aquifer::core::replay::verify(&trace).unwrap();
        assert_eq!(verified.stats, device.memory());
    }
    drop(device);
    assert_eq!(complaints(), Vec::<String>::new());
}

fn end(device: &Device) {
    device.synchronize().unwrap();
    let stats = device.memory();
    let left = (stats.active, stats.mapped, stats.wrapped, stats.allocations);
    assert_eq!(left, (0, 0, 0, 0), "something is left behind: {stats:?}");
    device.clear_cache();
    assert_eq!(device.memory().reserved, 0, "memory is held at the end");
}

/// One test for each case of the list.
#[macro_export]
macro_rules! conformance {
    ($open:expr; $($module:ident: $($case:ident)*;)*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                $crate::conformance::run($open, $crate::conformance::$module::$case);
            })*
        })*
    };
    ($open:expr) => {
        $crate::conformance! { $open;
            access:
                reads_wait_for_writes_only guards_refuse_what_conflicts elements_are_bounds_checked
                disjoint_views_do_not_wait printing_shows_both_modes waits_end_in_time
                device_and_cpu_alternate wrapped_memory_is_the_callers wrapped_views_and_offsets
                scopes_end_with_their_work private_elements_need_permission;
            arrays:
                every_type_and_rank_is_filled empty_arrays_are_legal modes_are_kept
                modes_convert_in_every_pair mixed_modes_give_shared views_share_memory
                reshape_and_reinterpret_are_checked ranges_copy_and_are_checked
                copies_overlap_safely large_copies_are_exact two_devices_copy_through_the_host
                random_numbers_are_reproducible;
            errors:
                bad_shapes_are_errors released_arrays_are_freed read_only_is_read_only
                failing_work_is_reported_once limits_refuse_and_recover kernels_are_checked
                absurd_sizes_are_errors;
            kernels:
                sources_are_chosen_by_device faults_show_their_line access_is_read_from_the_text
                indices_stay_inside views_are_bound_where_they_lie
                bytes_are_seen_as_words arguments_are_checked
                grids_are_chosen_or_given;
            memory:
                figures_follow_the_arrays steady_loops_do_not_allocate labels_count_what_is_theirs
                measuring_counts_one_allocation freed_in_flight_is_reused_safely
                many_threads_leave_nothing fresh_memory_is_not_zero_by_luck;
            numbers:
                arithmetic_agrees_with_rust functions_are_within_four_ulp integers_wrap_and_divide
                comparisons_and_select casts_agree_with_rust sixteen_bit_floats_round_once
                folds_agree_with_a_loop folds_along_the_last_axis shapes_repeat
                several_outputs_of_one_kernel long_expressions_are_one_kernel
                results_do_not_depend_on_the_place assignments_in_place_and_overlapping;
            order:
                a_chain_has_a_barrier_each independent_work_has_none batches_stay_open_until_full
                queues_order_by_use two_threads_alternate random_work_equals_sequential
                guards_and_records_race_safely threads_of_a_pool_wait_safely
                views_outlive_parents_in_flight wrapped_memory_lives_to_its_last_command
                a_device_drops_with_work_in_flight user_kernels_see_ranges;
            traces:
                a_decode_loop_replays_exactly threads_and_refusals_replay_exactly
                a_trace_may_begin_in_the_middle;
        }
    };
}
