package afpacket

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/spread"
	"github.com/lbprim/lbprim/internal/testenv"
)

// arrival is a frame and the queue it came by.
type arrival struct {
	queue int
	frame []byte
}

// queues opens a device of n queues on an interface of the balancer whose frames are collected.
func queues(t *testing.T, n int) (devs []*Device, client *Device, cable func(), arrivals chan arrival) {
	testenv.NeedNetns(t)
	var spaces [2]*netns.Namespace
	for i := range spaces {
		ns, err := netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { ns.Close() })
		spaces[i] = ns
	}
	cable = func() {
		require.NoError(t, netns.Join(netns.End{NS: spaces[0], Name: "c0"}, netns.End{NS: spaces[1], Name: "b0"}))
	}
	cable()
	require.NoError(t, spaces[1].Do(func() (err error) { devs, err = OpenQueues(&Config{Interfaces: []string{"b0"}}, n); return err }))
	require.NoError(t, spaces[0].Do(func() (err error) { client, err = Open(&Config{Interfaces: []string{"c0"}}); return err }))
	t.Cleanup(func() { client.Close() })
	go func() { // notices an interface that returns
		bufs, sizes := [][]byte{make([]byte, 70000)}, make([]int, 1)
		for {
			if _, err := client.Read(bufs, sizes, testOffset); err != nil {
				return
			}
		}
	}()
	arrivals = make(chan arrival, 4096)
	for i, d := range devs {
		done := make(chan struct{})
		go func() {
			defer close(done)
			bufs, sizes := make([][]byte, 16), make([]int, 16)
			for i := range bufs {
				bufs[i] = make([]byte, testOffset+70000)
			}
			for {
				k, err := d.Read(bufs, sizes, testOffset)
				if err != nil {
					return
				}
				for j := range k {
					f := bufs[j][testOffset : testOffset+sizes[j]]
					if bytes.HasSuffix(f, []byte("marked")) {
						arrivals <- arrival{i, bytes.Clone(f)}
					}
				}
			}
		}()
		t.Cleanup(func() { d.Close(); <-done })
	}
	return devs, client, cable, arrivals
}

// warm sends frames of its own until the cable carries them: what comes before the kernel has noticed it is lost.
func warm(t *testing.T, client *Device, to net.HardwareAddr, arrivals chan arrival) {
	t.Helper()
	f := marked(t, layers.IPProtocolUDP, netip.MustParseAddrPort("192.0.2.250:9"), netip.MustParseAddrPort("192.0.2.251:9"))
	require.Eventually(t, func() bool {
		put(client, to, f)
		select {
		case a := <-arrivals:
			return bytes.Equal(a.frame[12:], f[12:])
		case <-time.After(100 * time.Millisecond):
			return false
		}
	}, patience, time.Millisecond)
}

// put puts a frame on the cable.
func put(client *Device, to net.HardwareAddr, frame []byte) {
	copy(frame, to)
	b := append(make([]byte, testOffset), frame...)
	binary.NativeEndian.PutUint32(b, client.Interfaces()[0].Index)
	_, _ = client.Write([][]byte{b}, testOffset)
}

// send puts a frame on a cable that is warm, and says by which queue it arrives.
func send(t *testing.T, client *Device, to net.HardwareAddr, arrivals chan arrival, frame []byte) int {
	t.Helper()
	put(client, to, frame)
	for end := time.After(patience); ; {
		select {
		case a := <-arrivals:
			if bytes.Equal(a.frame[12:], frame[12:]) {
				return a.queue
			} // else it is one that warmed the cable
		case <-end:
			t.Fatal("the frame does not arrive")
			return -1
		}
	}
}

func marked(t *testing.T, proto layers.IPProtocol, src, dst netip.AddrPort, tags ...uint16) []byte {
	eth := &layers.Ethernet{SrcMAC: client, DstMAC: make([]byte, 6)}
	ls := []gopacket.SerializableLayer{eth}
	at := &eth.EthernetType
	for _, id := range tags {
		tag := &layers.Dot1Q{VLANIdentifier: id}
		*at = layers.EthernetTypeDot1Q
		ls, at = append(ls, tag), &tag.Type
	}
	var ip gopacket.NetworkLayer
	if dst.Addr().Is4() {
		l := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: proto, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		*at, ls, ip = layers.EthernetTypeIPv4, append(ls, l), l
	} else {
		l := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		*at, ls, ip = layers.EthernetTypeIPv6, append(ls, l), l
	}
	switch proto {
	case layers.IPProtocolTCP:
		l := &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), SYN: true}
		require.NoError(t, l.SetNetworkLayerForChecksum(ip))
		ls = append(ls, l)
	case layers.IPProtocolUDP:
		l := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		require.NoError(t, l.SetNetworkLayerForChecksum(ip))
		ls = append(ls, l)
	}
	return serialize(t, append(ls, gopacket.Payload("a payload that is longer than the padding of Ethernet: marked"))...)
}

// Both directions of a flow come by one queue, whichever server answers and however it is tagged; flows spread over the queues.
func TestFanoutKeepsAFlowOnOneQueue(t *testing.T) {
	devs, c, _, arrivals := queues(t, 4)
	var many []netip.Addr
	for i := range MostFanoutVIPs - 2 { // the longest program there is, and jumps over all of it
		many = append(many, netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 2: 0x0d, 3: 0xb8, 4: 7, 14: byte(i >> 8), 15: byte(i)}))
	}
	require.NoError(t, devs[1].SetVIPs(append(many, vip4, vip6)...))
	require.ErrorContains(t, devs[0].SetVIPs(append(many, vip4, vip6, netip.MustParseAddr("192.0.2.81"))...), "at most 256 with several queues")
	to := devs[0].Interfaces()[0].MAC
	warm(t, c, to, arrivals)
	servers := map[bool][]string{true: {"10.0.0.1", "10.0.0.2"}, false: {"fd00::1", "fd00::2"}}
	for _, vip := range []netip.Addr{vip4, vip6, many[0], many[len(many)-1]} {
		seen := map[int]int{}
		for i := range 24 {
			addr := netip.AddrFrom4([4]byte{198, 51, 100, byte(i % 5)})
			if vip.Is6() {
				addr = netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 2: 0x0d, 3: 0xb8, 4: 9, 15: byte(i % 5)})
			}
			client := netip.AddrPortFrom(addr, uint16(40000+i*7))
			proto := []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP}[i%2]
			queue := send(t, c, to, arrivals, marked(t, proto, client, netip.AddrPortFrom(vip, 80)))
			seen[queue]++
			require.EqualValues(t, spread.Hash(spread.Fold(addr.AsSlice()), client.Port())%4, queue, "as other workers are chosen")
			for j, s := range servers[vip.Is4()] {
				back := marked(t, proto, netip.AddrPortFrom(netip.MustParseAddr(s), uint16(8080+j)), client)
				require.Equal(t, queue, send(t, c, to, arrivals, back), "%v to %v, and back from %s", client, vip, s)
			}
			require.Equal(t, queue, send(t, c, to, arrivals, marked(t, proto, client, netip.AddrPortFrom(vip, 80), 10)), "tagged")
			require.Equal(t, queue, send(t, c, to, arrivals, marked(t, proto, client, netip.AddrPortFrom(vip, 80), 20, 10)), "tagged twice")
		}
		require.GreaterOrEqual(t, len(seen), 3, "%v", seen)
	}

	// Fragments have no ports: all of them go by the address, as do protocols without.
	client := netip.MustParseAddrPort("198.51.100.77:1234")
	frame := marked(t, layers.IPProtocolUDP, client, netip.AddrPortFrom(vip4, 80))
	frame[14+6] = 0x20
	first := send(t, c, to, arrivals, frame)
	frame[14+6], frame[14+7] = 0, 100
	frame[34]++ // data of a later fragment, where a port would be
	require.Equal(t, first, send(t, c, to, arrivals, frame))
	require.Equal(t, first, send(t, c, to, arrivals, marked(t, layers.IPProtocolGRE, client, netip.AddrPortFrom(vip4, 80))))
}

// Every frame comes once, other programs' groups and other devices' are apart, and a queue that closes leaves its share to the others.
func TestFanoutGroupsAreApart(t *testing.T) {
	devs, c, _, arrivals := queues(t, 2)
	require.NoError(t, devs[0].SetVIPs(vip4))
	to := devs[0].Interfaces()[0].MAC
	warm(t, c, to, arrivals)
	frames := func() (fs [][]byte) {
		for i := range 10 {
			fs = append(fs, marked(t, layers.IPProtocolUDP, netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), uint16(1000+i)), netip.AddrPortFrom(vip4, 53)))
		}
		return fs
	}
	used := map[int]bool{}
	for _, f := range frames() {
		used[send(t, c, to, arrivals, f)] = true
	}
	require.Len(t, used, 2)
	for quiet := time.After(50 * time.Millisecond); quiet != nil; {
		select {
		case a := <-arrivals:
			for _, f := range frames() {
				require.NotEqual(t, f[12:], a.frame[12:], "a frame came twice")
			}
		case <-quiet:
			quiet = nil
		}
	}
	require.NoError(t, devs[0].Close())
	for _, f := range frames() {
		require.Equal(t, 1, send(t, c, to, arrivals, f))
	}
	require.ErrorIs(t, devs[0].SetVIPs(vip4), os.ErrClosed)
	require.NoError(t, devs[1].SetVIPs(vip6))
}

// The sockets of a group cannot be bound again: an interface that returns gets new ones, in a new group.
func TestFanoutSurvivesItsInterface(t *testing.T) {
	devs, c, cable, arrivals := queues(t, 3)
	require.NoError(t, devs[0].SetVIPs(vip4, vip6))
	for round := range 2 {
		warm(t, c, devs[0].Interfaces()[0].MAC, arrivals)
		used := map[int]bool{}
		for i := range 24 {
			to := devs[0].Interfaces()[0].MAC
			from := netip.AddrPortFrom(netip.MustParseAddr("2001:db8:9::1"), uint16(2000+i))
			used[send(t, c, to, arrivals, marked(t, layers.IPProtocolTCP, from, netip.AddrPortFrom(vip6, 443)))] = true
		}
		require.Len(t, used, 3, "round %d", round)
		if round == 1 {
			return
		}
		// Both ends go with one.
		require.NoError(t, deleteLink(c))
		require.Eventually(t, func() bool {
			for _, d := range append(devs[:len(devs):len(devs)], c) {
				if d.Interfaces()[0].Index != 0 {
					return false
				}
			}
			return true
		}, patience, 10*time.Millisecond)
		cable()
		require.Eventually(t, func() bool {
			for _, d := range append(devs[:len(devs):len(devs)], c) {
				if d.Interfaces()[0].Index == 0 {
					return false
				}
			}
			return true
		}, patience, 10*time.Millisecond)
	}
}

func TestOpenQueuesSaysWhy(t *testing.T) {
	_, err := OpenQueues(&Config{Interfaces: []string{"eth0"}, BatchSize: -1}, 300)
	require.ErrorContains(t, err, "300 queues: want 1 to 256")
	require.ErrorContains(t, err, "BatchSize: -1")
	testenv.NeedNetns(t)
	ns, err := netns.New()
	require.NoError(t, err)
	defer ns.Close()
	require.NoError(t, netns.Join(netns.End{NS: ns, Name: "b0"}, netns.End{NS: ns, Name: "b1"}))
	require.NoError(t, setUp(ns, "b0", false))
	require.NoError(t, ns.Do(func() error {
		devs, err := OpenQueues(&Config{Interfaces: []string{"b0"}}, 2)
		if err != nil { // some kernels take only interfaces that are up
			require.ErrorContains(t, err, "ip link set dev b0 up")
		}
		for _, d := range devs {
			d.Close()
		}
		return nil
	}))
}

// TestSteerFits: whatever the VIPs, the program is one the kernel takes.
func TestSteerFits(t *testing.T) {
	for _, n := range []int{0, 1, MostFanoutVIPs} {
		var v4, v6 []netip.Addr
		for i := range n {
			v4 = append(v4, netip.AddrFrom4([4]byte{192, 0, byte(2 + i>>8), byte(i)}))
			v6 = append(v6, netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1)))
		}
		for _, vs := range [][]netip.Addr{v4, v6} {
			s, err := newVIPSet(vs)
			require.NoError(t, err)
			program := steer(s)
			require.NotEmpty(t, program)
			require.LessOrEqual(t, len(program), 4096)
		}
	}
	require.NotEmpty(t, steer(nil))
}
