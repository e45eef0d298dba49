//! `struct fi_info`, allocated by the libfabric of the test run.

use super::*;

#[test]
fn a_new_info_holds_what_is_set() {
    let mut info = Info::new().unwrap();
    let (source, peer) = ("10.0.0.1:7".parse().unwrap(), "[fe80::1%3]:80".parse().unwrap());
    info.set_caps(sys::FI_MSG);
    info.set_addr_format(sys::FI_SOCKADDR_IN);
    info.set_src_addr(Some(peer)).unwrap();
    info.set_src_addr(Some(source)).unwrap();
    info.set_dest_addr(Some(peer)).unwrap();
    info.tx_attr().set_size(12);
    info.rx_attr().set_size(34);
    info.ep_attr().set_type(sys::FI_EP_SOCK_STREAM);
    info.domain_attr().set_control_progress(sys::FI_PROGRESS_AUTO);
    info.domain_attr().set_data_progress(sys::FI_PROGRESS_MANUAL);
    info.domain_attr().set_resource_mgmt(sys::FI_RM_ENABLED);
    info.ep_attr().set_max_order_raw_size(usize::MAX);
    info.ep_attr().set_max_order_war_size(1);
    info.ep_attr().set_max_order_waw_size(2);
    info.domain_attr().set_max_ep_stx_ctx(3);
    info.domain_attr().set_max_ep_srx_ctx(4);
    info.domain_attr().set_mr_mode(constants::FI_MR_BASIC);
    info.domain_attr().set_name("first").unwrap();
    info.domain_attr().set_name("second").unwrap();
    info.fabric_attr().set_name("fabric").unwrap();

    let copy = info.as_ref().to_owned().unwrap();
    drop(info);
    let info = copy.as_ref();
    assert_eq!((info.caps(), info.mode(), info.addr_format()), (sys::FI_MSG, 0, sys::FI_SOCKADDR_IN));
    assert_eq!((info.src_addr(), info.dest_addr()), (Ok(Some(source)), Ok(Some(peer))));
    assert_eq!(info.tx_attr().unwrap().size(), 12);
    assert_eq!(info.rx_attr().unwrap().size(), 34);
    let endpoint = info.ep_attr().unwrap();
    assert_eq!(endpoint.type_(), 4);
    let sizes = [endpoint.max_order_raw_size(), endpoint.max_order_war_size(), endpoint.max_order_waw_size()];
    assert_eq!(sizes, [usize::MAX, 1, 2]);
    let domain = info.domain_attr().unwrap();
    assert_eq!((domain.max_ep_stx_ctx(), domain.max_ep_srx_ctx(), domain.mr_mode()), (3, 4, 1));
    assert_eq!((domain.control_progress(), domain.data_progress(), domain.resource_mgmt()), (1, 2, 2));
    assert_eq!(domain.name(), Ok(Some("second")));
    let fabric = info.fabric_attr().unwrap();
    assert_eq!((fabric.name(), fabric.prov_name()), (Ok(Some("fabric")), Ok(None)));
    assert!(info.handle().is_none() && domain.domain().is_none() && fabric.fabric().is_none());
}

#[test]
fn hints_may_lack_everything() {
    // SAFETY: an all-zero `struct fi_info` is valid: nothing is set.
    let mut raw: sys::fi_info = unsafe { std::mem::zeroed() };
    raw.caps = sys::FI_MSG;
    // SAFETY: as above; it outlives the use.
    let info = unsafe { InfoRef::from_raw(&raw const raw) }.unwrap();
    assert_eq!((info.src_addr(), info.dest_addr()), (Ok(None), Ok(None)));
    assert!(info.tx_attr().is_none() && info.rx_attr().is_none() && info.ep_attr().is_none());
    assert!(info.domain_attr().is_none() && info.fabric_attr().is_none() && info.handle().is_none());
    assert_eq!(info.to_owned().map(drop), Err(Errno::EINVAL), "an info of ours is complete");
    // SAFETY: null is allowed.
    assert!(unsafe { InfoRef::from_raw(ptr::null()) }.is_none());
}

#[test]
fn addresses_of_other_families_are_refused() {
    let mut info = Info::new().unwrap();
    info.set_src_addr(Some("127.0.0.1:1".parse().unwrap())).unwrap();
    let raw = info.as_ptr();
    // SAFETY: an owned info; the address is 16 bytes long.
    unsafe {
        (*raw).src_addrlen = 15;
        assert_eq!(info.as_ref().src_addr(), Err(Errno::EINVAL), "too short");
        (*raw).src_addrlen = 16;
        *(*raw).src_addr.cast::<u16>() = libc::AF_UNIX as u16;
    }
    assert_eq!(info.as_ref().src_addr(), Err(Errno::EINVAL));
    info.set_src_addr(None).unwrap();
    assert_eq!(info.as_ref().src_addr(), Ok(None));
}

#[test]
fn a_list_is_chained_in_order() {
    let mut list = InfoList::new();
    assert!(list.is_empty());
    for caps in 1..=3 {
        let mut info = Info::new().unwrap();
        info.set_caps(caps);
        list.push(info);
    }
    assert_eq!(list.iter().map(InfoRef::caps).collect::<Vec<_>>(), [1, 2, 3]);
    let first = list.into_raw();
    // SAFETY: this test owns the chain, which ends with null and is freed as a whole.
    unsafe {
        let (mut seen, mut info) = (Vec::new(), first);
        while !info.is_null() {
            seen.push((*info).caps);
            info = (*info).next;
        }
        assert_eq!(seen, [1, 2, 3]);
        sys::fi_freeinfo(first);
    }
    assert!(InfoList::new().into_raw().is_null());
}
