package pcapdev_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/pcapdev"
	"github.com/lbprim/lbprim/dataplane/pcapng"
	"github.com/lbprim/lbprim/internal/testenv"
)

var (
	_ dataplane.Device = (*pcapdev.Device)(nil)
	_ dataplane.Framer = (*pcapdev.Device)(nil)
)

// capture is n UDP packets, one a second, behind a link header of the given type.
func capture(t testing.TB, link layers.LinkType, n int) *bytes.Buffer {
	var file bytes.Buffer
	w := pcapgo.NewWriter(&file)
	require.NoError(t, w.WriteFileHeader(65536, link))
	for i := range n {
		b := gopacket.NewSerializeBuffer()
		ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{192, 0, 2, 1}, DstIP: net.IP{192, 0, 2, 2}}
		udp := &layers.UDP{SrcPort: layers.UDPPort(1000 + i), DstPort: 53}
		require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
		ls := []gopacket.SerializableLayer{ip, udp, gopacket.Payload("hello")}
		if link == layers.LinkTypeEthernet {
			ls = append([]gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}}, ls...)
		}
		require.NoError(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...))
		p := b.Bytes()
		switch link {
		case layers.LinkTypeNull:
			p = append([]byte{2, 0, 0, 0}, p...)
		case layers.LinkTypeLinuxSLL:
			p = append(make([]byte, 16), p...)
		}
		require.NoError(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1000+int64(i), 0), CaptureLength: len(p), Length: len(p)}, p))
	}
	return &file
}

func buffers(n int) ([][]byte, []int) {
	bufs := make([][]byte, n)
	for i := range bufs {
		bufs[i] = make([]byte, dataplane.Headroom+65536)
	}
	return bufs, make([]int, n)
}

func TestEveryLinkTypeGivesTheSamePackets(t *testing.T) {
	for _, link := range []layers.LinkType{layers.LinkTypeRaw, layers.LinkTypeNull, layers.LinkTypeLinuxSLL, layers.LinkTypeEthernet} {
		d, err := pcapdev.Open(capture(t, link, 5), &pcapdev.Config{BatchSize: 3})
		require.NoError(t, err)
		require.Equal(t, link == layers.LinkTypeEthernet, d.Ethernet())
		bufs, sizes := buffers(8)
		n, err := d.Read(bufs, sizes, dataplane.Headroom)
		require.NoError(t, err)
		require.Equal(t, 3, n)
		require.Len(t, d.Times(), 3)
		ip := bufs[0][dataplane.Headroom:][:sizes[0]]
		if d.Ethernet() {
			ip = ip[14:]
		}
		require.Equal(t, byte(0x45), ip[0])
		require.Equal(t, byte(33), ip[3], "length; the rest is Ethernet's padding")
		n, err = d.Read(bufs, sizes, dataplane.Headroom)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		_, err = d.Read(bufs, sizes, dataplane.Headroom)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, time.Unix(1004, 0), d.Now())
		require.Equal(t, pcapdev.Stats{Read: 5}, d.Stats())
	}
}

func TestWrittenPacketsCanBeRead(t *testing.T) {
	var out bytes.Buffer
	d, err := pcapdev.Open(capture(t, layers.LinkTypeEthernet, 4), &pcapdev.Config{Out: &out})
	require.NoError(t, err)
	bufs, sizes := buffers(4)
	n, err := d.Read(bufs, sizes, dataplane.Headroom)
	require.NoError(t, err)
	for i := range n {
		bufs[i] = bufs[i][:dataplane.Headroom+sizes[i]]
	}
	w, err := d.Write(bufs[:n], dataplane.Headroom)
	require.NoError(t, err)
	require.Equal(t, n, w)
	again, err := pcapdev.Open(&out, nil)
	require.NoError(t, err)
	require.True(t, again.Ethernet())
	copies, copySizes := buffers(8)
	m, err := again.Read(copies, copySizes, dataplane.Headroom)
	require.NoError(t, err)
	require.Equal(t, n, m)
	for i := range n {
		require.Equal(t, bufs[i][dataplane.Headroom:], copies[i][dataplane.Headroom:][:copySizes[i]])
	}
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := pcapdev.Open(capture(t, layers.LinkTypeRaw, 5), &pcapdev.Config{Speed: 2})
		require.NoError(t, err)
		bufs, sizes := buffers(8)
		start := time.Now()
		for range 5 {
			n, err := d.Read(bufs, sizes, dataplane.Headroom)
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
		require.Equal(t, 2*time.Second, time.Since(start), "four seconds at double speed")
	})
}

func TestCloseEndsAWaitingRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := pcapdev.Open(capture(t, layers.LinkTypeRaw, 0), &pcapdev.Config{Wait: true})
		require.NoError(t, err)
		go func() {
			time.Sleep(time.Second)
			d.Close()
		}()
		bufs, sizes := buffers(1)
		_, err = d.Read(bufs, sizes, dataplane.Headroom)
		require.ErrorIs(t, err, os.ErrClosed)
		_, err = d.Write(bufs, dataplane.Headroom)
		require.ErrorIs(t, err, os.ErrClosed)
	})
}

func TestFaults(t *testing.T) {
	_, err := pcapdev.Open(capture(t, layers.LinkTypeRaw, 1), &pcapdev.Config{Speed: -1, BatchSize: -5})
	require.ErrorContains(t, err, "Speed: -1")
	require.ErrorContains(t, err, "BatchSize: -5")
	_, err = pcapdev.Open(strings.NewReader("not a capture at all"), nil)
	require.ErrorContains(t, err, "not a capture")
	_, err = pcapdev.Open(strings.NewReader(""), nil)
	require.ErrorContains(t, err, "not a capture")
	_, err = pcapdev.Open(capture(t, layers.LinkTypeIEEE802_11, 0), nil)
	require.ErrorContains(t, err, "link type 105")

	whole := capture(t, layers.LinkTypeRaw, 1).Bytes()
	d, err := pcapdev.Open(bytes.NewReader(whole[:len(whole)-3]), nil)
	require.NoError(t, err)
	bufs, sizes := buffers(1)
	_, err = d.Read(bufs, sizes, dataplane.Headroom)
	require.ErrorContains(t, err, "packet 1")

	d, err = pcapdev.Open(capture(t, layers.LinkTypeRaw, 1), nil)
	require.NoError(t, err)
	_, err = d.Read([][]byte{make([]byte, 20)}, sizes, 16)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, uint64(1), d.Stats().Skipped)
}

// ngCapture is n packets in pcapng.
func ngCapture(t testing.TB, n int) []byte {
	var file bytes.Buffer
	w, err := pcapng.NewWriter(&file, nil)
	require.NoError(t, err)
	for i := range n {
		require.NoError(t, w.Write(time.Unix(int64(i), 0), 0, []byte{0x45, 0, 0, 20, 4: byte(i), 19: 1}, "a comment"))
	}
	return file.Bytes()
}

// readAll reads a capture to its end, and counts.
func readAll(file []byte) (packets int, err error) {
	d, err := pcapdev.Open(bytes.NewReader(file), nil)
	if err != nil {
		return 0, err
	}
	bufs, sizes := buffers(8)
	for err == nil {
		var n int
		n, err = d.Read(bufs, sizes, dataplane.Headroom)
		packets += n
	}
	return packets, err
}

// Lengths that are damaged cost no memory, and a capture that was cut says so; what comes before is read.
func TestDamagedCaptures(t *testing.T) {
	huge := capture(t, layers.LinkTypeRaw, 2).Bytes()
	binary.LittleEndian.PutUint32(huge[16:], 0xffffffff) // snap length
	second := 24 + 16 + 33
	binary.LittleEndian.PutUint32(huge[second+8:], 0xfffffff0)
	binary.LittleEndian.PutUint32(huge[second+12:], 0xfffffff0)
	n, err := readAll(huge)
	require.Equal(t, 1, n)
	require.ErrorContains(t, err, "packet 2")

	low := capture(t, layers.LinkTypeRaw, 2).Bytes()
	binary.LittleEndian.PutUint32(low[16:], 0) // some writers leave the snap length out
	n, err = readAll(low)
	require.Equal(t, 2, n)
	require.ErrorIs(t, err, io.EOF)

	whole := ngCapture(t, 3)
	n, err = readAll(whole)
	require.Equal(t, 3, n)
	require.ErrorIs(t, err, io.EOF)
	last := bytes.LastIndex(whole, []byte{6, 0, 0, 0})
	for name, at := range map[string]int{"block": last + 4, "captured": last + 20, "trailer": len(whole) - 4} {
		for _, v := range []uint32{0xfffffff0, 0x7ffffffc, 13} {
			if name == "captured" && v == 13 {
				continue // shorter is no fault
			}
			file := bytes.Clone(whole)
			binary.LittleEndian.PutUint32(file[at:], v)
			n, err = readAll(file)
			require.Equal(t, 2, n, "%s %x", name, v)
			require.NotErrorIs(t, err, io.EOF, "%s %x", name, v)
		}
	}
	for cut := last + 1; cut < len(whole); cut++ {
		n, err = readAll(whole[:cut])
		require.Equal(t, 2, n)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

// FuzzOpen: no capture, however damaged, panics or takes memory it has not the bytes for.
func FuzzOpen(f *testing.F) {
	f.Add(capture(f, layers.LinkTypeEthernet, 2).Bytes())
	f.Add(ngCapture(f, 2))
	f.Fuzz(func(t *testing.T, file []byte) {
		if n, err := readAll(file); err == nil || n > len(file) {
			t.Fatal(n, err)
		}
	})
}

// Every capture there is can be read to its end.
func TestCaptures(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testenv.Shared(t), "*", "*.pcap"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	packets, damaged := 0, 0
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		d, err := pcapdev.Open(f, nil)
		if err != nil {
			require.ErrorContains(t, err, "link type", name)
			f.Close()
			continue
		}
		bufs, sizes := buffers(64)
		for err == nil {
			_, err = d.Read(bufs, sizes, dataplane.Headroom)
		}
		if !errors.Is(err, io.EOF) { // some captures are damaged, a few on purpose
			require.ErrorContains(t, err, "pcapdev: read: packet ", name)
			damaged++
		}
		packets += int(d.Stats().Read)
		f.Close()
	}
	t.Logf("%d packets in %d captures, %d of them damaged", packets, len(files), damaged)
	require.Less(t, damaged, len(files)/20)
	require.Greater(t, packets, 10000)
}

func ExampleOpen() {
	var file bytes.Buffer
	w := pcapgo.NewWriter(&file)
	if err := w.WriteFileHeader(65536, layers.LinkTypeRaw); err != nil {
		fmt.Println(err)
		return
	}
	packet := []byte{0x45, 0, 0, 20}
	if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(0, 0), CaptureLength: len(packet), Length: len(packet)}, packet); err != nil {
		fmt.Println(err)
		return
	}
	dev, err := pcapdev.Open(&file, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	bufs, sizes := [][]byte{make([]byte, 2048)}, make([]int, 1)
	for {
		n, err := dev.Read(bufs, sizes, dataplane.Headroom)
		if err != nil {
			fmt.Println("end:", errors.Is(err, io.EOF))
			return
		}
		fmt.Println(n, "packet of", sizes[0], "bytes")
	}
	// Output:
	// 1 packet of 4 bytes
	// end: true
}
