package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

const (
	nodes = 100
	batch = 32
	// round is how many packets are measured at a time: some milliseconds.
	round = 512 * batch
)

// vip is the virtual address. It is not changed.
var vip = netip.AddrFrom4([4]byte{203, 0, 113, 1})

// packets are 46-byte IPv4 packets (64 bytes on Ethernet) of n clients at random.
type packets struct {
	n        int
	template []byte
	bufs     [][]byte
	sizes    []int
	r        *rand.Rand
}

func newPackets(t testing.TB, n int) *packets {
	ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: []byte{11, 0, 0, 0}, DstIP: vip.AsSlice()}
	udp := &layers.UDP{SrcPort: 1024, DstPort: 80}
	require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
	b := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, udp, gopacket.Payload(make([]byte, 18))))
	p := &packets{n: n, template: b.Bytes(), r: rand.New(rand.NewPCG(1, 2)), sizes: make([]int, batch)}
	for range batch {
		p.bufs = append(p.bufs, make([]byte, dataplane.ReadOffset+2048))
	}
	return p
}

// put makes buffer j a packet of client i.
func (p *packets) put(j, i int) {
	b := p.bufs[j][dataplane.ReadOffset:]
	p.sizes[j] = copy(b, p.template)
	binary.BigEndian.PutUint32(b[12:], 0x0b000000+uint32(i)>>8)
	binary.BigEndian.PutUint16(b[20:], 1024+uint16(i&0xff))
}

func (p *packets) random() {
	for j := range batch {
		p.put(j, int(p.r.Uint64()>>32*uint64(p.n)>>32))
	}
}

// subject handles a batch of packets.
type subject struct {
	name string
	do   func(p *packets)
}

func ours(t testing.TB, n int) subject {
	var ns []steering.Node
	for i := range nodes {
		ns = append(ns, steering.Node{Name: fmt.Sprint("n", i), Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 8080)})
	}
	pool, err := steering.NewPool(&steering.Config{Metric: steering.Maglev}, ns...)
	require.NoError(t, err)
	var m policy.Match
	require.NoError(t, m.UnmarshalText([]byte(vip.String()+" udp/80")))
	table, err := policy.Compile(nil, policy.Rule[*dataplane.Service]{Name: "r", Match: m, Value: &dataplane.Service{Name: "s", Pool: pool}})
	require.NoError(t, err)
	plane, err := dataplane.New(&dataplane.Config{Policies: table, MaxSessions: n + n/8})
	require.NoError(t, err)
	t.Cleanup(func() { plane.Close() })
	return subject{"lbprim", func(p *packets) {
		if out := plane.Process(time.Now(), p.bufs, p.sizes, dataplane.ReadOffset, nil); len(out) != batch {
			t.Fatal(len(out), "packets came out")
		}
	}}
}

func theirs(name string, st store) subject {
	s := newStack(st)
	return subject{name, func(p *packets) {
		now := time.Now().UnixNano()
		for j, b := range p.bufs {
			s.process(b[dataplane.ReadOffset:dataplane.ReadOffset+p.sizes[j]], now)
		}
	}}
}

// cpu is what this process has used, in ns.
func cpu() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano() + u.Stime.Nano())
}

func perPacket(f func()) float64 {
	start := cpu()
	for range round / batch {
		f()
	}
	return (cpu() - start) / round
}

// TestSameWork has all translate a packet alike, but for the node they choose.
func TestSameWork(t *testing.T) {
	p := newPackets(t, 1)
	for _, s := range []subject{ours(t, 100), theirs("sharded map", newSharded(100)), theirs("otter", newCache(t, 100))} {
		for range 2 { // of a new session, and of a known one
			p.random()
			s.do(p)
			b := bytes.Clone(p.bufs[0][dataplane.ReadOffset : dataplane.ReadOffset+p.sizes[0]])
			require.Equal(t, []byte{10, 0, 0}, b[16:19], s.name)
			require.EqualValues(t, 8080, binary.BigEndian.Uint16(b[22:]), s.name)
			pkt := gopacket.NewPacket(b, layers.LayerTypeIPv4, gopacket.Default)
			require.Nil(t, pkt.ErrorLayer())
			ip := pkt.NetworkLayer().(*layers.IPv4)
			udp := pkt.TransportLayer().(*layers.UDP)
			sum, ipSum := udp.Checksum, ip.Checksum
			require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
			again := gopacket.NewSerializeBuffer()
			require.NoError(t, gopacket.SerializeLayers(again, gopacket.SerializeOptions{ComputeChecksums: true}, ip, udp, gopacket.Payload(udp.Payload)))
			require.Equal(t, [2]uint16{ipSum, sum}, [2]uint16{ip.Checksum, udp.Checksum}, s.name)
		}
	}
}

// TestRatios prints what a packet costs, in rounds that take turns.
func TestRatios(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	for _, n := range []int{1000, 1_000_000} {
		p := newPackets(t, n)
		subjects := []subject{ours(t, n), theirs("gopacket, bart, sharded map, go-maglev, gVisor", newSharded(n)), theirs("the same with otter", newCache(t, n))}
		for _, s := range subjects { // open all flows
			for i := 0; i < n; i += batch {
				for j := range batch {
					p.put(j, min(i+j, n-1))
				}
				s.do(p)
			}
		}
		runtime.GC()
		const rounds = 41
		samples, making := make([][]float64, len(subjects)), []float64(nil)
		for range rounds {
			making = append(making, perPacket(p.random))
			for i, s := range subjects {
				samples[i] = append(samples[i], perPacket(func() { p.random(); s.do(p) }))
			}
		}
		slices.Sort(making)
		base := making[rounds/2]
		first := 0.0
		for i, s := range subjects {
			slices.Sort(samples[i])
			median := samples[i][rounds/2] - base
			if i == 0 {
				first = median
			}
			t.Logf("%9d flows: %6.1f ns of CPU per packet (best round %6.1f), %5.2f x ours: %s", n, median, samples[i][0]-base, median/first, s.name)
		}
	}
}
