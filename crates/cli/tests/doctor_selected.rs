//! `mpib doctor` on what the filters select beside what was probably meant.

use crate::doctor_util::doctor;

const TEN: &str = "mlx5_0:addr=10.1.0.1/24;mlx5_1:addr=10.2.0.1/24;mlx5_10:addr=10.3.0.1/24;\
                   mlx5_11:addr=10.4.0.1/24";

//= doctor.md: an item that is one adapter's name and the beginning of others' is a note
#[test]
fn the_beginning_of_a_name_is_a_note_with_the_form_for_one() {
    let notes = |filter: &str| doctor(TEN, &[("NCCL_IB_HCA", filter)]).checks("ports", "note");
    let found = doctor(TEN, &[("NCCL_IB_HCA", "mlx5_1:1")]);
    found.usable_with(&[]);
    found.says(
        "ports",
        "note",
        &["mlx5_1:1 in NCCL_IB_HCA selects mlx5_1, mlx5_10, mlx5_11", "NCCL_IB_HCA==mlx5_1:1, in which"],
    );
    assert!(notes("^mlx5_1")[0].0.contains("excludes mlx5_1, mlx5_10, mlx5_11"));
    for meant in ["=mlx5_1", "mlx5", "mlx5_1,mlx5_10,mlx5_11", "mlx5_0,mlx5_10"] {
        assert_eq!(notes(meant), [], "{meant}");
    }
}

//= doctor.md: a port below half of the fastest one's speed, or of another link layer, is a note
#[test]
fn a_slow_port_is_a_note_with_the_filter_that_leaves_it_out() {
    let ib = |n: u32| format!("mlx5_{n}:link=ib,lid={},rate=400Gb", n + 1);
    let others =
        "mlx5_2:addr=10.1.0.1/24,rate=400Gb;mlx5_3:link=ib,lid=9,rate=200Gb;mlx5_4:link=ib,lid=10,rate=100Gb";
    let all = format!("{};{};{others}", ib(0), ib(1));
    let found = doctor(&all, &[]);
    found.usable_with(&[]);
    found.says(
        "ports",
        "note",
        &[
            "beside ports of 400 Gb/s InfiniBand",
            ": mlx5_2:1 (400 Gb/s RoCE), mlx5_4:1 (100 Gb/s InfiniBand)",
            "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_3:1",
        ],
    );
    // The filter of the remedy keeps rails and planes, and leaves nothing to note.
    let found = doctor(&all, &[("NCCL_IB_HCA", "mlx5_0:1:3:1,mlx5_4")]);
    found.says("ports", "note", &["mlx5_4:1", "NCCL_IB_HCA==mlx5_0:1:3:1"]);
    for set in [
        &[("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1,mlx5_3:1")][..],
        &[("MPIB_HCA_SOUT", "mlx5_0"), ("MPIB_HCA_SUP", "mlx5_4")],
        &[("NCCL_IB_HCA", "=mlx5_0,mlx5_4"), ("MPIB_RAIL_SPEED", "mlx5_0:200000")],
    ] {
        assert_eq!(doctor(&all, set).checks("ports", "note"), [], "{set:?}");
    }
}

//= doctor.md: quotes and blanks in variables of the environment are named
#[test]
fn quotes_in_the_environment_are_named_once() {
    let said = |variable: &str, value: &str, id: &str, level: &str| {
        let found = doctor(TEN, &[(variable, value)]);
        found.unusable();
        let checks = found.document["checks"].to_string();
        assert_eq!(checks.matches("quotes").count(), 1, "{found:#?}");
        found.says(id, level, &["quotes", &format!("write {variable}=")]);
    };
    said("NCCL_IB_HCA", "\"mlx5_0\"", "settings", "fail");
    said("NCCL_IB_TC", "'106'", "settings", "fail");
    said("NCCL_NET", "\"MPIB\"", "environment", "warn");
}
