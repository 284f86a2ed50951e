package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// labelled is a message of gossip with the label of a cluster.
func labelled(name string, b ...byte) []byte {
	return append(append([]byte{244, byte(len(name))}, name...), b...)
}

func noise(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestForgedGossip: packets and streams of gossip from those who do not belong, and such as nobody can read, are refused, and each is counted.
func TestForgedGossip(t *testing.T) {
	keyed, open := launch(t, Config{Node: "lb0"}), launch(t, Config{Node: "lb0", Insecure: true})
	for _, c := range []struct {
		name   string
		to     *running
		stream bool
		b      []byte
	}{
		{"noise", keyed, false, append([]byte{99}, noise(200)...)},
		{"another cluster's name", keyed, false, labelled("other", noise(200)...)},
		{"half a name", keyed, false, []byte{244, 10, 't'}},
		{"not under the key", keyed, false, labelled("test", noise(200)...)},
		{"oversized", keyed, false, labelled("test", noise(60_000)...)},
		{"short", keyed, false, labelled("test", 1, 2, 3)},
		{"noise by stream", keyed, true, append([]byte{99}, noise(200)...)},
		{"not under the key by stream", keyed, true, labelled("test", noise(200)...)},
		{"an unknown kind", open, false, labelled("test", 200, 1, 2)},
		{"a malformed probe", open, false, labelled("test", append([]byte{0}, 0xc1)...)},
		{"a malformed member", open, false, labelled("test", 4, 0xc1)},
		{"several messages cut short", open, false, labelled("test", 7, 5, 0)},
		{"a damaged checksum", open, false, labelled("test", append([]byte{12}, noise(20)...)...)},
		{"not compressed", open, false, labelled("test", append([]byte{9}, noise(20)...)...)},
		{"an unknown kind by stream", open, true, labelled("test", 200, 1, 2)},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.to.Stats().GossipRefused
			network := "udp"
			if c.stream {
				network = "tcp"
			}
			conn, err := net.Dial(network, c.to.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write(c.b)
			require.NoError(t, err)
			eventually(t, "counted", func() bool { return c.to.Stats().GossipRefused > before })
		})
	}
	// A report that nobody can read, from a member.
	before := open.Stats().Malformed
	d := &delegate{open.Cluster}
	d.NotifyMsg([]byte{1, 2, 3})
	d.NotifyMsg(append((&told{by: "lb1", r: NodeReport{Node: "sh1"}}).append(nil), 0))
	d.MergeRemoteState([]byte{0}, false)
	require.Equal(t, before+3, open.Stats().Malformed)
	// One that comes again, or late, says nothing.
	newer, older := &told{by: "lb1", epoch: 1, number: 2, r: NodeReport{Node: "sh1", Up: true}}, &told{by: "lb1", epoch: 1, number: 1, r: NodeReport{Node: "sh1"}}
	for _, r := range []*told{newer, older, newer} {
		d.NotifyMsg(r.append(nil))
	}
	require.EqualValues(t, 2, open.Stats().Stale)
	for _, r := range []*running{keyed, open} {
		require.Equal(t, []string{"lb0"}, r.Members())
	}
}

func TestRefusalsInTheLog(t *testing.T) {
	for line, want := range map[string]bool{
		"[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=1.2.3.4:5": true,
		"[ERR] memberlist: failed to receive: EOF from=1.2.3.4:5":                                             false,
		"[ERR] memberlist: failed to receive: read tcp: i/o timeout from=1.2.3.4:5":                           false,
		"[ERR] memberlist: failed to receive: Encryption is configured but remote state is not encrypted":     true,
		"[WARN] memberlist: Refuting a suspect message (from: lb1)":                                           false,
		"[ERR] memberlist: Failed to send gossip to 1.2.3.4:5: write udp: network is unreachable":             false,
		"[WARN] memberlist: Got invalid checksum for UDP packet: 1, 2":                                        true,
	} {
		require.Equal(t, want, isRefusal([]byte(line)), line)
	}
}

// TestForgedStreams: openings of streams that are no such, and connections that say nothing.
func TestForgedStreams(t *testing.T) {
	keyed, open := launch(t, Config{Node: "lb0"}), launch(t, Config{Node: "lb0", Insecure: true})
	hello := func(n int, b ...byte) []byte {
		return append(binary.BigEndian.AppendUint16([]byte(magic), uint16(n)), b...)
	}
	for _, c := range []struct {
		name string
		to   *running
		b    []byte
	}{
		{"in the clear", keyed, hello(3, 1, 2, 3)},
		{"a TLS record of nothing", keyed, append([]byte{firstTLS, 3, 1, 0, 50}, noise(50)...)},
		{"a long hello", open, hello(maxHello+1, make([]byte, 2000)...)},
		{"a hello of nothing", open, hello(0)},
		{"a hello of noise", open, hello(50, noise(50)...)},
		{"another magic", open, append([]byte("lbC9"), noise(50)...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.to.Stats().Refused
			conn, err := net.Dial("tcp", c.to.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write(c.b)
			require.NoError(t, err)
			eventually(t, "counted", func() bool { return c.to.Stats().Refused == before+1 })
		})
	}
	var conns []net.Conn
	for range maxNew + 20 {
		conn, err := net.Dial("tcp", keyed.Addr().String())
		require.NoError(t, err)
		conns = append(conns, conn)
	}
	eventually(t, "those who are too many", func() bool { return keyed.Stats().Dropped >= 20 })
	for _, c := range conns {
		c.Close()
	}
	late := launch(t, Config{Node: "lb1", Join: []netip.AddrPort{keyed.Addr()}})
	late.sees("lb0", "lb1")
}

// recorder is a Network that keeps what is sent by TLS.
type recorder struct {
	hostNetwork
	mu    sync.Mutex
	conns []*recorded
}

type recorded struct {
	net.Conn
	r   *recorder
	buf bytes.Buffer
}

func (r *recorder) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := r.hostNetwork.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	k := &recorded{Conn: c, r: r}
	r.mu.Lock()
	r.conns = append(r.conns, k)
	r.mu.Unlock()
	return k, nil
}

func (c *recorded) Write(b []byte) (int, error) {
	c.r.mu.Lock()
	c.buf.Write(b)
	c.r.mu.Unlock()
	return c.Conn.Write(b)
}

// tls returns the longest stream of TLS so far.
func (r *recorder) tls() (b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		if x := c.buf.Bytes(); len(x) > len(b) && x[0] == firstTLS {
			b = bytes.Clone(x)
		}
	}
	return b
}

// TestRecordedStream: a stream that was recorded is worth nothing when it is sent again.
func TestRecordedStream(t *testing.T) {
	r := launch(t, Config{Node: "lb0"})
	tape := &recorder{}
	other := launch(t, Config{Node: "lb1", Join: []netip.AddrPort{r.Addr()}, Network: tape})
	r.sees("lb0", "lb1")
	for i := range 50 {
		other.announce(i)
	}
	eventually(t, "flows", func() bool { return r.Stats().Flows.Flows == 50 })
	before := r.Stats().Refused
	conn, err := net.Dial("tcp", r.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	go func() { _, _ = conn.Write(tape.tls()) }()
	eventually(t, "refused", func() bool { return r.Stats().Refused == before+1 })
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 4096)
	for err == nil {
		_, err = conn.Read(b)
	}
	s := r.Stats()
	require.Equal(t, 50, s.Flows.Flows)
	require.Zero(t, s.Malformed+s.Flows.Strangers)
}

// TestForgedBulk: messages of the other class of streams that are malformed end the stream, and are counted.
func TestForgedBulk(t *testing.T) {
	r := launch(t, Config{Node: "lb0", Insecure: true})
	friend, err := newCluster(&Config{Name: "test", Node: "lb1", Insecure: true, Bind: netip.MustParseAddrPort("127.0.0.1:0")}, 1, 1)
	require.NoError(t, err)
	defer friend.Close()
	r.mu.Lock()
	r.members["lb1"] = &member{meta: meta{epoch: friend.self.Epoch}, name: "lb1"}
	r.mu.Unlock()
	l := &link{c: friend, to: r.self, addr: r.Addr().String(), class: classBulk}
	for _, b := range [][]byte{{bulkSettings}, {bulkFollow, 200}, {9, 0}, append([]byte{bulkSettings}, noise(40)...)} {
		before := r.Stats().Malformed
		conn, err := l.open(context.Background())
		require.NoError(t, err)
		frame := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, uint32(len(b))), 1)
		_, err = conn.Write(append(frame, b...))
		require.NoError(t, err)
		eventually(t, "counted", func() bool { return r.Stats().Malformed == before+1 })
		conn.Close()
	}
	// A table that is not here is none of the sender's faults, and counted apart.
	require.NoError(t, r.bulk(flowshare.Member{Name: "lb1", Epoch: friend.self.Epoch}, append(bulkHead(bulkFollow, "nothing"), make([]byte, 16)...)))
	require.EqualValues(t, 1, r.Stats().UnknownFeeds)
}
