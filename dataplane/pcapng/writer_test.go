package pcapng_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/pcapng"
	"github.com/lbprim/lbprim/internal/testenv"
)

var (
	at     = time.Unix(1_800_000_000, 123456789)
	packet = []byte{0x45, 0, 0, 21, 0, 0, 0, 0, 64, 253, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0xaa}
)

func TestWiresharkShowsTheComments(t *testing.T) {
	tshark := testenv.NeedServers(t, "tshark")[0]
	var file bytes.Buffer
	w, err := pcapng.NewWriter(&file, &pcapng.Config{Interfaces: []string{"eth0", "eth1"}})
	require.NoError(t, err)
	require.NoError(t, w.Write(at, 0, packet, "service web, node n1: least connections"))
	require.NoError(t, w.Write(at.Add(time.Second), 1, packet, "größer\nzwei Zeilen"))
	require.NoError(t, w.Write(at.Add(2*time.Second), 1, packet, ""))
	name := filepath.Join(t.TempDir(), "c.pcapng")
	require.NoError(t, os.WriteFile(name, file.Bytes(), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, tshark, "-r", name, "-T", "fields", "-E", "separator=|", "-e", "frame.time_epoch", "-e", "frame.interface_name", "-e", "frame.len", "-e", "ip.src", "-e", "frame.comment").CombinedOutput()
	require.NoErrorf(t, err, "%s", out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	text := string(out)
	require.Contains(t, text, "1800000000.123456789|eth0|21|192.0.2.1|service web, node n1: least connections")
	require.Contains(t, text, "1800000001.123456789|eth1|21|192.0.2.1|größer")
	require.True(t, strings.HasSuffix(lines[len(lines)-1], "eth1|21|192.0.2.1|"), text)
}

func TestReadBack(t *testing.T) {
	var file bytes.Buffer
	w, err := pcapng.NewWriter(&file, &pcapng.Config{LinkType: pcapng.Ethernet, SnapLen: 16})
	require.NoError(t, err)
	for i := range 5 {
		require.NoError(t, w.Write(at, 0, packet[:15+i], strings.Repeat("c", i)))
	}
	r, err := pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions)
	require.NoError(t, err)
	for i := range 5 {
		b, info, err := r.ReadPacketData()
		require.NoError(t, err)
		require.Equal(t, packet[:min(16, 15+i)], b)
		require.Equal(t, 15+i, info.Length)
		require.True(t, info.Timestamp.Equal(at))
	}
}

func TestBounds(t *testing.T) {
	var file bytes.Buffer
	w, err := pcapng.NewWriter(&file, &pcapng.Config{MaxBytes: 1000})
	require.NoError(t, err)
	for err == nil {
		err = w.Write(at, 0, packet, "why")
	}
	require.ErrorIs(t, err, pcapng.ErrFull)
	s := w.Stats()
	require.LessOrEqual(t, s.Bytes, int64(1000))
	require.Equal(t, int64(file.Len()), s.Bytes)
	require.NotZero(t, s.Packets)
	require.Equal(t, uint64(1), s.Refused)
	require.ErrorContains(t, w.Write(at, 3, packet, ""), "interface 3: want 0 to 0")

	_, err = pcapng.NewWriter(&file, &pcapng.Config{SnapLen: -1})
	require.ErrorContains(t, err, "SnapLen: -1")
	_, err = pcapng.NewWriter(&file, &pcapng.Config{Application: strings.Repeat("x", 70000), Interfaces: []string{"eth0", strings.Repeat("x", 70000)}})
	require.ErrorContains(t, err, "Application: 70000 bytes")
	require.ErrorContains(t, err, "Interfaces[1]: 70000 bytes")
	_, err = pcapng.NewWriter(full{}, nil)
	require.ErrorIs(t, err, errDisk)
}

// A comment longer than an option can be is cut to whole characters; a disk that fills up damages the file once only.
func TestLongCommentsAndFullDisks(t *testing.T) {
	var file bytes.Buffer
	w, err := pcapng.NewWriter(&file, nil)
	require.NoError(t, err)
	start := file.Len()
	require.NoError(t, w.Write(at, 0, packet, "x"+strings.Repeat("ä", 40000)))
	block := file.Bytes()[start:]
	require.True(t, utf8.Valid(block[bytes.IndexByte(block, 'x'):bytes.LastIndex(block, []byte("ä"))+2]))
	r, err := pcapgo.NewNgReader(bytes.NewReader(file.Bytes()), pcapgo.DefaultNgReaderOptions)
	require.NoError(t, err)
	_, _, err = r.ReadPacketData()
	require.NoError(t, err)

	small := &limited{left: 200}
	w, err = pcapng.NewWriter(small, nil)
	require.NoError(t, err)
	for err == nil {
		err = w.Write(at, 0, packet, "why")
	}
	require.ErrorIs(t, err, errDisk)
	packets := w.Stats().Packets
	small.left = 1000
	require.ErrorIs(t, w.Write(at, 0, packet, ""), errDisk, "the file is damaged")
	require.Equal(t, packets, w.Stats().Packets)
}

// limited is a disk with so many bytes left.
type limited struct{ left int }

func (l *limited) Write(b []byte) (int, error) {
	if n := l.left; n < len(b) {
		l.left = 0
		return n, errDisk
	}
	l.left -= len(b)
	return len(b), nil
}

var errDisk = errors.New("disk full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errDisk }

func ExampleWriter() {
	var file bytes.Buffer
	w, err := pcapng.NewWriter(&file, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := w.Write(at, 0, packet, "dropped: no policy"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(w.Stats().Packets, "packet")
	// Output: 1 packet
}

// A capture of Ethernet frames of two interfaces, that ends by itself.
func ExampleConfig() {
	var file bytes.Buffer
	w, err := pcapng.NewWriter(&file, &pcapng.Config{LinkType: pcapng.Ethernet, Interfaces: []string{"eth0", "eth1"}, MaxBytes: 512, SnapLen: 64})
	if err != nil {
		fmt.Println(err)
		return
	}
	frame := make([]byte, 100)
	for i := 0; err == nil; i++ {
		err = w.Write(at, i%2, frame, "")
	}
	fmt.Println(errors.Is(err, pcapng.ErrFull), file.Len() <= 512, w.Stats().Packets > 1)
	_, err = pcapng.NewWriter(&file, &pcapng.Config{SnapLen: -1})
	fmt.Println(err)
	// Output:
	// true true true
	// pcapng: config: SnapLen: -1: want 1 to 2147483647 bytes, or 0 for 262144
}
