package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// panel is one of the dashboard's over some minutes, as TestMonitoring of test/e2e records it.
type panel struct {
	Title string `json:"title"`
	Unit  string `json:"unit"`
	Lines []struct {
		Legend string       `json:"legend"`
		Points [][2]float64 `json:"points"`
	} `json:"lines"`
}

// columns is how many panels stand beside each other.
const columns = 3

// dashboard draws all panels of docs/monitoring.json into one picture, as the dashboard has them.
func dashboard(root string) error {
	b, err := os.ReadFile(filepath.Join(root, "docs/monitoring.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var panels []panel
	if err == nil {
		err = json.Unmarshal(b, &panels)
	}
	if err != nil {
		return err
	}
	rows := (len(panels) + columns - 1) / columns
	plots := make([][]*plot.Plot, rows)
	for i := range plots {
		plots[i] = make([]*plot.Plot, columns)
	}
	for i, p := range panels {
		if plots[i/columns][i%columns], err = p.plot(); err != nil {
			return err
		}
	}
	picture := vgimg.NewWith(vgimg.UseWH(columns*11*vg.Centimeter, vg.Length(rows)*6*vg.Centimeter), vgimg.UseDPI(96))
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: vg.Centimeter / 2, PadY: vg.Centimeter / 2, PadTop: vg.Centimeter / 4, PadRight: vg.Centimeter / 2}
	for i, row := range plot.Align(plots, tiles, draw.New(picture)) {
		for j, canvas := range row {
			if plots[i][j] != nil {
				plots[i][j].Draw(canvas)
			}
		}
	}
	file, err := os.Create(filepath.Join(root, "docs/plots/dashboard.png"))
	if err != nil {
		return err
	}
	_, err = vgimg.PngCanvas{Canvas: picture}.WriteTo(file)
	return errors.Join(err, file.Close())
}

// plot draws one panel.
func (p panel) plot() (*plot.Plot, error) {
	out := plot.New()
	out.Title.Text, out.X.Label.Text, out.Y.Label.Text = p.Title, "s", p.Unit
	out.Legend.Top, out.Legend.Left = true, true
	out.Legend.TextStyle.Font.Size = vg.Points(7)
	out.Y.Min = 0
	for i, l := range p.Lines {
		points := make(plotter.XYs, len(l.Points))
		for j, at := range l.Points {
			points[j] = plotter.XY{X: at[0], Y: at[1]}
		}
		if len(points) == 0 {
			continue
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, err
		}
		line.Color = plotutil.Color(i)
		out.Add(line)
		if i < 6 { // more names hide the lines
			out.Legend.Add(l.Legend, line)
		}
	}
	return out, nil
}
