package sslpersist

import (
	"bytes"
	"fmt"
	"os"
	"sort"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
)

type packetSource interface {
	gopacket.PacketDataSource
	LinkType() layers.LinkType
}

// gap stands behind the last byte of a direction from which segments are missing.
const gap = " gap"

// reassemble returns the bytes of each TCP direction of a capture up to the first gap,
// keyed "address port address port"; if there is a gap, the key with gap behind it is
// there too. It does no more than these captures need.
func reassemble(t *testing.T, file string) map[string][]byte {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	var src packetSource
	if src, err = pcapgo.NewReader(bytes.NewReader(raw)); err != nil {
		src, err = pcapgo.NewNgReader(bytes.NewReader(raw), pcapgo.DefaultNgReaderOptions)
		require.NoError(t, err)
	}
	type segment struct {
		seq  uint32
		data []byte
	}
	segments, start := map[string][]segment{}, map[string]uint32{}
	for {
		data, _, err := src.ReadPacketData()
		if err != nil {
			break // at the end, or where the capture was cut
		}
		p := gopacket.NewPacket(data, src.LinkType(), gopacket.DecodeOptions{NoCopy: true})
		tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if !ok || p.NetworkLayer() == nil {
			continue
		}
		nf := p.NetworkLayer().NetworkFlow()
		key := fmt.Sprintf("%s %d %s %d", nf.Src(), tcp.SrcPort, nf.Dst(), tcp.DstPort)
		seq := tcp.Seq
		if tcp.SYN {
			seq++
			start[key] = seq
		}
		if len(tcp.Payload) > 0 {
			segments[key] = append(segments[key], segment{seq, tcp.Payload})
		}
	}
	out := map[string][]byte{}
	for key, segs := range segments {
		isn, ok := start[key]
		if !ok {
			isn = segs[0].seq
		}
		sort.SliceStable(segs, func(i, j int) bool { return int32(segs[i].seq-isn) < int32(segs[j].seq-isn) })
		for _, s := range segs {
			at := int(int32(s.seq - isn))
			if at > len(out[key]) {
				out[key+gap] = nil
				break
			}
			if skip := len(out[key]) - at; skip < len(s.data) {
				out[key] = append(out[key], s.data[skip:]...)
			}
		}
	}
	return out
}
