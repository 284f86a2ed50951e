package afpacket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Preflight checks that the kernel will neither answer nor forward what the balancer handles on these interfaces, and
// that nothing hides or merges packets before a packet socket sees them. It returns all [Conflict]s it finds, joined.
func Preflight(interfaces []string, vips []netip.Addr) error {
	var faults []error
	add := func(name, fix, format string, args ...any) {
		faults = append(faults, &Conflict{Interface: name, What: fmt.Sprintf(format, args...), Fix: fix})
	}
	xdp, err := xdpAttached()
	if err != nil {
		return fmt.Errorf("afpacket: preflight: list links: %w", err)
	}
	// IPv6 is forwarded or not by the host as a whole (the kernel's ip-sysctl documentation, conf/all/forwarding).
	all6, err := sysctl("ipv6", "all", "forwarding")
	all6 = all6 && err == nil
	for _, name := range interfaces {
		if _, err := net.InterfaceByName(name); err != nil {
			faults = append(faults, fmt.Errorf("afpacket: interface %q: %w", name, err))
			continue
		}
		if on, err := sysctl("ipv4", name, "forwarding"); err == nil && on {
			add(name, "sysctl -w net/ipv4/conf/"+name+"/forwarding=0", "the kernel forwards IPv4 packets too (net.ipv4.conf.%s.forwarding = 1)", name)
		}
		if all6 {
			add(name, "sysctl -w net/ipv6/conf/all/forwarding=0", "the kernel forwards IPv6 packets too (net.ipv6.conf.all.forwarding = 1)")
		} else if on, err := sysctl("ipv6", name, "force_forwarding"); err == nil && on {
			add(name, "sysctl -w net/ipv6/conf/"+name+"/force_forwarding=0", "the kernel forwards IPv6 packets too (net.ipv6.conf.%s.force_forwarding = 1)", name)
		}
		if xdp[name] {
			add(name, "ip link set dev "+name+" xdp off", "an XDP program is attached and sees packets first")
		}
		if lro, err := hasLRO(name); err == nil && lro {
			add(name, "ethtool -K "+name+" lro off", "large receive offload merges packets that cannot be split again")
		}
	}
	for name, addrs := range localAddrs() {
		for _, a := range addrs {
			for _, vip := range vips {
				if a == vip.Unmap() {
					add(name, fmt.Sprintf("ip addr del %s dev %s", a, name), "VIP %s is an address of this host, whose kernel would answer for it", a)
				}
			}
		}
	}
	for _, vip := range vips {
		if vip.Is6() && !vip.Is4In6() && refused(vip) {
			add("all", fmt.Sprintf("ip -6 route add blackhole %s", vip), "the kernel has no route to VIP %s, and tells its clients so", vip)
		}
	}
	return errors.Join(faults...)
}

// refused reports whether the kernel answers packets to an IPv6 address with an error, for want of a route. It does so on hosts that
// forward nothing, too, other than with IPv4.
func refused(vip netip.Addr) bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrInet6{Port: 9, Addr: vip.As16()}) // looks the route up, and sends nothing
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES)
}

func sysctl(family, name, key string) (bool, error) {
	b, err := os.ReadFile("/proc/sys/net/" + family + "/conf/" + name + "/" + key)
	if err != nil {
		return false, err
	}
	return strings.TrimSpace(string(b)) != "0", nil
}

func localAddrs() map[string][]netip.Addr {
	all := map[string][]netip.Addr{}
	ifis, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, ifi := range ifis {
		addrs, err := ifi.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				all[ifi.Name] = append(all[ifi.Name], p.Addr().Unmap())
			}
		}
	}
	return all
}

// xdpAttached returns the names of the links that have an XDP program (rtnetlink(7), IFLA_XDP).
func xdpAttached() (map[string]bool, error) {
	const iflaXDPAttached = 2
	rib, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	msgs, err := syscall.ParseNetlinkMessage(rib)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for i := range msgs {
		attrs, err := syscall.ParseNetlinkRouteAttr(&msgs[i])
		if err != nil {
			continue
		}
		var name string
		var on bool
		for _, a := range attrs {
			switch a.Attr.Type & nlaType {
			case unix.IFLA_IFNAME:
				name = unix.ByteSliceToString(a.Value)
			case unix.IFLA_XDP:
				attributes(a.Value, func(typ uint16, v []byte) {
					if typ == iflaXDPAttached && len(v) > 0 {
						on = v[0] != 0
					}
				})
			}
		}
		if on {
			found[name] = true
		}
	}
	return found, nil
}

// hasLRO asks the driver (ethtool's ETHTOOL_GFLAGS).
func hasLRO(name string) (bool, error) {
	const flagLRO = 1 << 15
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GFLAGS}
	var req struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	req.data = unsafe.Pointer(&value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return false, errno
	}
	return value.data&flagLRO != 0, nil
}
