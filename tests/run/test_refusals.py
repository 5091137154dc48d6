"""Wrong input: each mistake is one line with its remedy, and nothing is written."""

import contextlib
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from descend.results import write_json
from tests.support.runs import RUN, TINY, put, refused
from tests.support.sources import image_folder, write_frames, write_video

TRAINED = [
    # A new denoiser.
    ("video-ut --depht 3", "no setting --depht (did you mean --depth?)"),
    ("video-ut --learning-rat=3", "(did you mean --learning-rate?)"),
    ("video-ut --resum", "no setting --resum (did you mean --resume?)"),
    ("video-ut --lr 0.1", "no setting --lr (did you mean --learning-rate?)"),
    ("video-ut --epochs=3", "no setting --epochs (did you mean --num-train-epochs?)"),
    ("video-ut --batch_size 3", "(did you mean --per-device-train-batch-size?)"),
    ("video-ut --layers 3", "no setting --layers (did you mean --depth?)"),
    ("video-ut --device cpu", "no setting --device (did you mean --use-cpu?)"),
    ("video-ut --sigma 25", "no setting --sigma (did you mean --noise?)"),
    ("video-ut --workers 2", "(did you mean --dataloader-num-workers?)"),
    ("video-ut --steps 2", "(did you mean --max-steps?)"),
    ("video-ut --output 2", "no setting --output (did you mean --out?)"),
    ("video-tu --depth 2", "no recipe 'video-tu' (did you mean video-ut?)"),
    ("video-ut --bf16 true", "--bf16 takes no value; give --bf16 or --no-bf16"),
    ("video-ut --resolution 2", "no setting --resolution; descend train video-ut --help lists them"),
    ("video-ut stray", "stray"),
    ("video-ut --depth three", "argument --depth: invalid int value: 'three'"),
    ("video-ut --depth 0", "depth must be from 1 to 1024"),
    ("video-ut --alpha 1", "strictly between 0 and 1"),
    ("video-ut --alpha -0.1", "strictly between 0 and 1"),
    ("video-ut --alpha nan", "strictly between 0 and 1"),
    ("video-ut --alpha 0.1,0.2", "one per layer (7); got 2 numbers"),
    ("video-ut --alpha '0.1;0.2'", "one number or one per layer"),
    ("video-ut --noise -0.1", "noise must be a level γ of at least 0"),
    ("video-ut --noise inf", "noise must be a level γ of at least 0"),
    ("video-ut --noise loud", "invalid float value: 'loud'"),
    ("video-ut --dual-optim-args '{kp: 5}'", "must be a JSON object"),
    ("video-ut --dual-optim-args 5", "must be a JSON object"),
    ("video-ut --dual-optim-args '{\"lr\": 5}'", "other than lr"),
    ("video-ut --dual-optim-args '{\"kq\": 5}'", "got an unexpected keyword argument 'kq'"),
    ("video-ut --dual-warmup-steps -1", "dual_warmup_steps must be at least 0"),
    ("video-ut --dual-warmup-steps 400", "got 400 of 400"),
    ("video-ut --dual-warmup-steps 0.9 --max-steps 4", "got 4 of 4"),
    ("video-ut --dual-warmup-epoch 1", "(did you mean --dual-warmup-epochs?)"),
    ("video-ut --alpha=0.1 --slack=explicit --slack-optimizer rmsprop", "invalid choice: 'rmsprop'"),
    ("video-ut --first-layer 7", "(--first-layer) must be from 0 to"),
    ("video-ut --max-steps 0", "max_steps must be at least 1, or -1 to train by epochs; got 0"),
    ("video-ut --method erm --max-steps 0", "max_steps must be at least 1, or -1 to train by epochs; got 0"),
    ("video-ut --seed -1", "seed must be from 0 to 2^32 - 1; got -1"),
    ("video-ut --learning-rate inf", "learning_rate must be at least 0, and finite; got inf"),
    ("video-ut --save-only-model", "save_only_model must be off"),
    ("video-ut --kernel cubic", "invalid choice: 'cubic'"),
    ("video-ut --optim sgdd", "sgdd"),
    ("video-ut --window 500", "clip scene 0 has 30 frames; expected at least"),
    ("video-ut --window 0", "window and stride must be at least 1"),
    ("video-ut --validation-share 1", "validation_share must lie between 0 and 1"),
    ("video-ut --maxsteps 3", "did you mean --max-steps?"),
    ("video-ut --output_dir run", "no setting --output-dir (did you mean --out?)"),
    ("video-ut --resume-from-checkpoint run", "(did you mean --resume?)"),
    ("video-ut --disable-tqdm", "(did you mean --quiet?)"),
    ("video-ut --tied false", "--tied takes no value; give --tied or --no-tied"),
    ("video-ut --no-tied=True", "--no-tied takes no value; give --tied or --no-tied"),
    ("video-ut --preset pape", "invalid choice: 'pape'"),
    ("video-ut --method erm --layer-dropout 0.1", "--layer-dropout: a setting of the method layerskip"),
    ("video-ut --r-drop 2", "--r-drop: a setting of the method r-drop. Leave it out"),
    ("video-ut --attention-size 7 --heads 2", "attention_size"),
    ("video-ut --report-to nowhere", "nowhere"),
    # New models of texts.
    ("text-distilbert --dataset sst", "'sst'"),
    ("text-distilbert --max-length 2", "max_length must be at least 3"),
    ("text-distilbert --readout deep", "'deep'"),
    ("text-distilbert --dropout 1", "dropout must lie in [0, 1)"),
    ("text-distilbert --validation-share 2", "validation_share must lie between 0 and 1"),
    ("text-distilbert --hidden-size 18", "hidden_size must be a multiple of heads; got 18 and 4"),
    ("text-distilbert --heads 0", "heads must be at least 1; got 0"),
    ("text-distilbert --hidden-size 0", "hidden_size must be at least 1; got 0"),
    ("text-distilbert --noise inf", "noise must be a level"),
    (
        "text-distilbert --metric-for-best-model f1",
        "metric_for_best_model must be one of accuracy, feasible, loss, merit, violation; got 'f1'",
    ),
    ("text-distilbert --data ./none", "does not exist"),
    ("text-distilbert --data REVIEWS --max-length 12 --no-truncate", "tokens; expected at most 12"),
    # Pretrained ones in their place.
    ("text-distilbert --model MODELS/bert", "expected a DistilBERT, model_type 'distilbert'; MODELS/bert is of"),
    ("text-distilbert --model MODELS/distilbert --max-length 99", "takes texts of at most 40 tokens; got --max-length"),
    (
        "text-distilbert --model MODELS/distilbert --dataset mnli --max-length 20",
        "has a head of 2 labels; mnli has 3: entailment, neutral, contradiction",
    ),
    (
        "text-distilbert --model MODELS/distilbert --max-length 20 --tokenizer words",
        "Give the model's own tokenizer",
    ),
    ("text-ut --model MODELS/bert --tokenizer words", "Give the model's own tokenizer"),
    ("text-distilbert --model nobody/nothing", "can't load a model from 'nobody/nothing': expected a folder with"),
    # Any pretrained model of texts.
    ("text", "text trains a pretrained model; expected --model PATH_OR_NAME"),
    ("text --model nobody/nothing", "can't load a model from 'nobody/nothing'"),
    ("text --model MODELS/bert --keep-layers 0", "keep_layers must be from 1 to 1024; got 0"),
    (
        "text --model MODELS/bert --keep-layers 4 --max-length 30",
        "layers must be 1 to 3, the number of layers of the model; got 4",
    ),
    ("text --model MODELS/bert --keep-layers 2 --heal --method useful", "most inner layers are frozen; got --method"),
    ("text --model MODELS/bert --keep-layers 2 --heal --strength 0.5", "most inner layers are frozen; got --strength"),
    ("text --model MODELS/bert", "takes texts of at most 40 tokens; got --max-length 128"),
    ("text --model MODELS/causal --max-length 300", "takes texts of at most 64 tokens"),
    ("text --model MODELS/bert --dataset mnli --max-length 30", "a head of 2 labels; mnli has 3"),
    (
        "text --model MODELS/bert --data moods.csv --max-length 30",
        "has a head of 2 labels; labelled has 3: calm, fear, joy",
    ),
    ("text --model t5", "'t5' can't be read by its head: it has an encoder and a decoder"),
    ("text --model big_bird", "model_type must be one of distilbert, bert,"),
    ("text --model big_bird", "got 'big_bird'. For another family name the parts in Python, as print(model) shows"),
    ("text --model big_bird", "descend.layered(model, blocks='encoder.layer', readout="),
    ("text --model MODELS/bert --pooling max", "choice: 'max'"),
    ("text --model MODELS/bert --depth 2", "no setting --depth"),
    ("text --model MODELS/mean --pooling cls --max-length 30", "can't be replaced; leave out --pooling cls"),
    ("text-distilbert --model MODELS/mean", "expected a DistilBERT, model_type 'distilbert'; "),
    # Language models.
    ("lm", "lm needs data; expected --data FILE"),
    ("lm --model MODELS/causal --keep-layers 9 --max-length 60", "layers must be 1 to 3"),
    (
        "lm --model MODELS/causal --keep-layers 2 --lora q_proj --max-length 60",
        "--keep-layers and --lora exclude",
    ),
    ("lm --model MODELS/causal --heal --max-length 60", "got 3 of the 3 layers of"),
    ("lm --model MODELS/causal --keep-layers 3 --heal --max-length 60", "Give --keep-layers K with K below 3"),
    ("lm --model MODELS/causal --keep-layers 2 --heal --lora q_proj --max-length 60", "--lora exclude"),
    ("lm --model MODELS/causal --keep-layers 2 --heal --method probe", "--heal is plain training (erm)"),
    ("lm --model MODELS/causal --keep-layers 2 --heal --alpha 0.1 --exits own", "got --exits and --alpha. Leave out"),
    ("llm-sft --heal", "no setting --heal"),
    ("lm --model MODELS/causal --lora no --max-length 60", "--lora must name modules of the model: "),
    ("lm --model MODELS/bert", "model_type must be one of llama"),
    ("llm-sft --exit-share 0", "must lie in (0, 1]; got 0.0"),
    ("llm-sft --lora q_proj", "--lora needs a pretrained --model"),
    ("llm-sft --packing --dual-warmup-steps 200", "dual_warmup_steps"),
    ("llm-sft --head-lr-ratio 2", "head_lr_ratio is of a classifier's head and own exits"),
    ("llm-sft --dataset-text-field foo", "--dataset-text-field has no effect"),
    ("llm-sft --dataloader-num-workers -1", "dataloader_num_workers must be from 0 to 1024"),
    ("llm-sft --report-to wandb", "wandb"),
    ("llm-sft --heads 3", "hidden_size must be a multiple of heads"),
    ("llm-sft --max-length 4", "max_length must be at least 8"),
    ("llm-sft --model nowhere/at/all", "can't load a model"),
    ("llm-sft --data none.json", "none.json does not exist"),
    ("llm-sft --validation-share 0.7", "validation_share must lie between"),
    # Images.
    ("image --model MODELS/three --data digits", "head of 3 labels; digits has 10"),
    (
        "image --model MODELS/named --data FARM",
        "knows the classes dogs, cats; data has cows, dogs, and of cows the model has none".replace("data", "FARM"),
    ),
    ("image --model MODELS/three --image-size 30", "multiple of 4"),
    ("image --model beit --image-size 32", "beit takes images of 224 pixels alone"),
    ("image --model MODELS/three --keep-layers 4", "layers must be 1 to 3"),
    ("image --model MODELS/three --heal", "--heal trains the end of a model that is cut"),
    ("image --model MODELS/three --data nowhere", "does not exist; expected a file or folder, digits"),
    ("image --model MODELS/three --method neftune", "word embeddings"),
    ("image --model MODELS/three --validation-share 1", "between 0 and 1"),
]
OTHERS = [
    # Words.
    ("trian", "no command 'trian' (did you mean train?)"),
    ("train", "no recipe given; expected one of video-ut, "),
    ("train video-tu", "no recipe 'video-tu' (did you mean video-ut?)"),
    ("train --resume RUN", "expected the recipe first, got --resume"),
    ("train --recipe video-vit", "expected the recipe first, got --recipe"),
    ("train video-ut --data generated", "the following arguments are required: --out"),
    ("train video-ut --out OUT", "video-ut needs data; expected --data PATH"),
    ("train video-ut", "the following arguments are required: --out"),
    ("sweep text-ut --trials 1 --out OUT", "or --data generated"),
    ("evaluate RUN --lr 0.1", "no setting --lr; descend evaluate --help lists them"),
    ("eval RUN", "no command 'eval' (did you mean evaluate?)"),
    ("predict RUN", "no command 'predict'; descend --help lists them"),
    ("train vit", "no recipe 'vit' (did you mean video-vit?)"),
    ("demo --out OUT --max-steps 0", "max_steps must be at least 1, or -1 to train by epochs; got 0"),
    ("train video-ut --data generated --out OUT --data NOWHERE", "does not exist"),
    ("train video-ut --data generated --out OUT --out FILE", "expected a folder to write to; FILE is a file"),
    ("train video-ut --data generated --out OUT --out FILE --resume", "expected a folder to write to; FILE is a file"),
    ("train video-ut --data generated --out OUT --out . --resume", "config.json must be a file; it is not there"),
    ("evaluate", "the following arguments are required: run"),
    ("evaluate NOWHERE", "NOWHERE/config.json must be a file; it is not there"),
    ("evaluate FILE", "FILE/config.json must be a file; it is not there"),
    ("evaluate RUN --nois 1", "no setting --nois (did you mean --noise?)"),
    ("evaluate RUN --split train --validation-noise all", "--validation-noise goes with the run's own test data"),
    ("evaluate RUN --noise loud", "0,0.1,0.2 or start:stop:step as 0:2:0.25; got 'loud'"),
    ("evaluate RUN --noise 0:1", "start:stop:step"),
    ("evaluate RUN --noise 0:1:0", "start:stop:step"),
    ("evaluate RUN --noise 0:inf:1", "start:stop:step"),
    ("evaluate RUN --noise -0.5", "levels γ of at least 0"),
    ("evaluate RUN --noise nan", "levels γ of at least 0"),
    ("evaluate RUN --noise=-0.5,0", "levels γ of at least 0"),
    ("evaluate RUN --data FILE --split train", "got --split train. Leave out --data or --split"),
    ("evaluate RUN --frames 0", "frames must be at least 1; got 0"),
    ("evaluate RUN --split tset", "invalid choice: 'tset'"),
    ("evaluate RUN --model best", "has no model named 'best'; its models: model."),
    ("evaluate RUN --model ../erm/model", "its models: model."),
    ("evaluate RUN --model best_feasible", "at no evaluation in training all of them held. Leave --model out."),
    ("paper embed --data x --out OUT", "no recipe 'embed'; expected one of video-ut, video-dust,"),
    ("evaluate RUN/model", "is a model of a run; give the run: "),
    ("export RUN/model --layers 1 --out OUT", "--model model"),
    ("export EXPORT --layers 1 --out OUT", "give the run that it was exported from"),
    ("export SCRIPT --layers 1 --out OUT", "of your own, cut the list of blocks"),
    ("evaluate CMP", "CMP holds a comparison, and no run. Give one of its runs: a or CMP/b."),
    ("compare CMP RUN --out OUT", "CMP holds a comparison, and no run. Give one of its runs: a or CMP/b."),
    ("evaluate SCRIPT", "SCRIPT was written by descend layers or by a script, and is no run of descend train"),
    ("export SAVED --layers 1 --out OUT", "SAVED is a saved model of bert, and no run"),
    ("evaluate SAVED", "Judge it by descend evaluate SAVED --task classification --data PATH"),
    ("evaluate RUN --shift pink", "invalid choice: 'pink'"),
    ("evaluate RUN --data NOWHERE", "does not exist"),
    ("compare RUN", "the following arguments are required: --out"),
    ("compare NOWHERE --out OUT", "NOWHERE has no summary.json; evaluate it first"),
    ("compare RUN --out RUN", "holds something else than a comparison; choose another folder with --out"),
    ("report NOWHERE", "NOWHERE/summary.json must be a file; it is not there"),
    ("compare RUN --out FILE", "FILE holds something else than a comparison"),
    ("train video-ut --data generated --out OUT --out FILE/run", "expected a folder to write to; FILE is a file"),
    ("demo --out FILE/demo", "FILE is a file"),
    ("demo --out FILE", "holds something else than a comparison"),
    ("export RUN --layers 1 --out FILE/a/b", "FILE is a file"),
    ("complete RUN --prompts FILE --out FILE/a.json", "FILE is a file"),
    ("denoise RUN --data NOWHERE --out OUT", "NOWHERE does not exist; expected a folder of clips"),
    ("denoise RUN --data FILE --out OUT", "FILE is not a video"),
    ("denoise RUN --data IMAGES --out OUT --layer 0", "layer must be 1 to 2"),
    ("denoise RUN --data IMAGES --out OUT --layer 3", "layer must be 1 to 2"),
    ("denoise RUN --data IMAGES --out OUT --noise -1", "noise must be a level γ"),
    ("denoise RUN --data IMAGES --out IMAGES", "must be a new or an empty folder"),
    ("denoise EXPORT --data IMAGES --out OUT", "give the run that it was exported from"),
    ("denoise CUT --data IMAGES --out OUT --model best_feasible", "CUT has no model 'best_feasible'"),
    ("evaluate CUT", "are written by descend denoise CUT --data PATH"),
    ("denoise TEXT --data IMAGES --out OUT", "expected a run folder of a video recipe, a folder with a denoiser"),
    ("sweep video-ut --data generated --trials 1 --out FILE", "FILE is a file"),
    ("reproduce figure-2", "no command 'reproduce'; descend --help lists them"),
    ("demo --max-step 1", "no setting --max-step (did you mean --max-steps?)"),
    ("demo --max-steps 1 --data NOWHERE", "does not exist"),
    ("recipes --all", "no setting --all"),
    ("evaluate SUMMARY", "in Python descend.evaluate evaluates a model"),
    ("evaluate SUMMARY", "Its page: descend report SUMMARY."),
    ("evaluate RUN --limit 1", "--limit (most) must be at least 2 samples; got 1"),
    ("evaluate RUN --most 1", "--limit (most) must be at least 2 samples; got 1"),
    ("export RUN --layers 1 --out OUT --tolerance 2", "go with --layers auto"),
    ("export RUN --layers 1 --out OUT --baseline RUN", "go with --layers auto"),
    ("export RUN --layers few --out OUT", "a whole number of at least 1, auto, certified or best; got 'few'"),
    (
        "train video-ut --data generated --out OUT --out RUN",
        "RUN exists; choose another with --out, or resume the run with --resume.",
    ),
    (
        f"train {' '.join(TINY)} --out RUN --max-steps 8 --save-steps 3 --resume --learning-rate 0.1 --depth 3",
        "was made with other settings: depth (was 2, now 3), learning_rate (was 0.003, now 0.1)",
    ),
    (f"train {' '.join(TINY)} --out earlier --resume", "now constrained). Add --method erm, its default then."),
    (f"train {' '.join(TINY)} --out earlier --resume --method constrained", "constrained). Give the same command"),
    (f"train {' '.join(TINY)} --out earlier --resume --alpha 0.3", "now constrained). Give the same command"),
    (
        "train video-ut --data generated --out OUT --data SHORT --window 2",
        "leaves 1 window of 2 frames to validate on; expected at least",
    ),
    ("demo --max-steps 1 --out ERM", "ERM holds erm/thesis.txt, which Descend did not write"),
    ("demo --max-steps 1 --out CONSTRAINED", "holds constrained/thesis.txt, which Descend did not write"),
    ("evaluate RUN --noise=", "noise must be levels"),
    ("evaluate RUN --noise=a", "noise must be levels"),
    ("evaluate RUN --noise=0:1:2:3", "noise must be levels"),
    ("evaluate RUN --noise=1,-1", "levels γ of at least 0"),
    ("evaluate RUN --noise=inf", "levels γ of at least 0"),
    ("evaluate RUN --noise=0:-1:1", "levels γ of at least 0"),
    ("evaluate RUN --noise=0,,1", "noise must be levels"),
    ("evaluate RUN --log-level loud", "'loud'"),
    # Flags that do not go together.
    ("evaluate RUN --risk 0.01", "--risk chooses the threshold of early exits; add --exit"),
    ("evaluate RUN --exit --confidence 0.9", "--confidence goes with --risk; add --risk"),
    ("evaluate RUN --confidence 0.9", "--confidence goes with --risk; add --risk"),
    ("evaluate RUN --exit --risk 0.1 --unseen", "--unseen goes with --task and --risk"),
    ("evaluate RUN --dataset imdb", "--dataset goes with --task"),
    ("evaluate RUN --split train --compare-with best", "--compare-with best (compare_with) chooses"),
    ("evaluate RUN --split train --validation-noise 1", "--validation-noise goes with the run's own test data"),
    ("evaluate RUN --data DATA --split train", "evaluated on their test split; got --split train"),
    ("evaluate RUN --exit", "only models of text can be probed or left early"),
    ("evaluate RUN --iterations 2", "iterations must be a whole number above 2, the model's depth, and at most 1024"),
    ("evaluate RUN --iterations 1025", "and at most 1024; got 1025"),
    ("evaluate RUN --iterations 8 --probe", "--iterations and --probe do not go together"),
    # No file is replaced that Descend did not write.
    (
        "train video-ut --data generated --out HOLDS/model/weights.pt --resume",
        "weights.pt holds config.json, model, which Descend may replace",
    ),
    (
        "train video-ut --data generated --out HOLDS/dual.safetensors --resume",
        "dual.safetensors holds config.json, dual.safetensors, which",
    ),
    ("evaluate HOLDS/summary.json", "summary.json holds summary.json, which Descend may replace"),
    ("evaluate HOLDS/report.html", "report.html holds report.html, which Descend may replace"),
    ("evaluate HOLDS/on-DATA/groups.json --data DATA", "Choose other data, or move it."),
    ("compare RUN --out PAGE-1", "PAGE-1 holds summary.json, which Descend may replace"),
    ("compare RUN --out PAGE-2", "PAGE-2 holds report.html, which Descend may replace"),
    (
        "sweep video-ut --data generated --use-cpu --trials 1 --out HOLDS/sweep.db",
        "HOLDS/sweep.db/sweep.db can't be opened: file is not a database",
    ),
    (
        "sweep video-ut --data generated --use-cpu --trials 1 --out HOLDS/sweep.json",
        "HOLDS/sweep.json holds sweep.json, which Descend may replace",
    ),
    ("demo --out DEMO-1", "DEMO-1 holds report.html, which Descend may replace"),
    ("demo --out DEMO-2", "DEMO-2 holds erm/notes.txt, which Descend did not write"),
    ("complete --compare ANSWERS.json --out HOLDS/page.html", "HOLDS holds page.html, which Descend"),
    # Models as they are.
    ("evaluate MODELS/long-bert --layers --data REVIEWS", "a command of its own: descend layers MODEL"),
    ("layers RUN --data REVIEWS", "RUN is the folder of a run; give RUN/model"),
    ("layers MODELS/long-bert --data REVIEWS --out RUN", "RUN holds a run or a model, whose evaluation"),
    ("layers MODELS/long-bert --data REVIEWS --out other", "other holds results that are not those of"),
    ("layers MODELS/long-bert --data REVIEWS --out t5/config.json", "t5/config.json is a file"),
    ("layers MODELS/long-bert --data t5/config.json --dataset labelled", "line 1 has no column text"),
    ("layers MODELS/long-bert --data words/vocab.txt", "must be a folder with a folder of .txt"),
    (
        "layers MODELS/long-bert --data REVIEWS --save new --layers 2 --tolerance 1",
        "--tolerance goes with --layers auto, certified or best",
    ),
    ("layers MODELS/long-bert --data REVIEWS --image-size 8", "--image-size is none of descend train text"),
    ("layers nobody/nothing --data REVIEWS", "can't load a model from 'nobody/nothing'"),
    # Pictures and answers.
    ("denoise RUN --data clips --out new", "clips holds a.avi and a.mp4, two files for one clip"),
    ("denoise unfinished --data clips --out new", "Finish the run first: the same descend train with --resume"),
    ("complete RUN --prompts none.json --out new.json", "must be a JSON file of prompts"),
    ("complete --compare none.json --out new.json", "none.json must be a file; it is not there"),
    ("complete --out new.json", "expected the folder of a run and --prompts"),
    # Exports.
    *(
        (f"export RUN --out new --layers={layers}", f"1 to 2, the layers of RUN, auto, certified or best; got {layers}")
        for layers in (0, 3, 99)
    ),
    *((f"export RUN --out new --layers={layers}", layers) for layers in ("two", "-1", "1.5")),
    *(
        (f"export RUN --out new --layers auto --tolerance={tolerance}", f"chooses K; got {tolerance}. Give one of them")
        for tolerance in ("-1", "0.5", "nan")
    ),
    ("export clips --out new --layers 1", "config.json"),
    ("export RUN/model --out new --layers 1", "give the run: RUN"),
    ("export RUN --out RUN/model --layers 1", "new or an empty folder"),
    ("export RUN --out t5/config.json --layers 1", "new or an empty folder"),
    ("export unfinished --out new --layers 1", "--resume"),
    ("export RUN --out new --layers 1 --model nothing", "its models: model"),
    # Privacy.
    ("privacy", "expected --noise with levels γ such as 1,20,200, or the folder of a run; got neither"),
    ("privacy --noise loud", "noise must be levels as 0,0.1,0.2"),
    ("privacy --noise -1", "levels γ of at least 0"),
    ("privacy --noise 1 --delta 0", "delta must lie strictly between 0 and 1, such as 1e-5; got 0.0"),
    ("privacy --noise 1 --delta 1", "delta must lie strictly between 0 and 1"),
    ("privacy --noise 1 --delta=-1e-5", "delta must lie strictly between 0 and 1"),
    ("privacy --noise 1 --delta nan", "delta must lie strictly between 0 and 1"),
    ("privacy --noise 1 --delta small", "invalid float value: 'small'"),
    ("privacy --noise 1 --clip 0", "clip must be a finite number above 0; got 0.0"),
    ("privacy --noise 1 --clip -3", "clip must be a finite number above 0"),
    ("privacy --noise 1 --clip inf", "clip must be a finite number above 0"),
    ("privacy --noise 1 --clip 1e308", "sensitivity must be a finite number above 0"),
    ("privacy --noise 1 --sigma 0", "sigma must be a finite number above 0"),
    ("privacy --noise 1e300 --sigma 1e300", "standard deviation must be finite"),
    ("privacy --noise 1 --tokens 0", "tokens must be from 1 to"),
    (f"privacy --noise 1 --tokens {'9' * 400}", "tokens must be from 1 to"),
    ("privacy --noise 1 --tokens 1.5", "invalid int value: '1.5'"),
    ("privacy --noise 1 --dimension 0", "dimension must be from 1 to"),
    (f"privacy --noise 1 --dimension {'9' * 400}", "dimension must be from 1 to"),
    ("privacy --noise 1 --epsilon 1", "no setting --epsilon"),
    ("privacy --noise 1 --noise-is snr", "'std', 'variance'"),
    ("privacy NOWHERE", "NOWHERE/config.json must be a file; it is not there"),
    ("privacy NOWHERE --noise 1", "NOWHERE/config.json must be a file; it is not there"),
]


FILES = {
    "FILE": "a file",
    "TEXT/config.json": RUN.replace("video-ut", "text-ut"),
    "TEXT/model/config.json": '{"recipe": "text-ut"}',
    "EXPORT/config.json": '{"model_type": "ut", "descend": {"exported_layers": 1}}',
    "CUT/config.json": '{"model_type": "descend-ut", "descend": {"exported_layers": 1}}',
    "SCRIPT/checkpoint-5/trainer_state.json": "{}",
    "SAVED/config.json": '{"model_type": "bert", "architectures": ["BertForSequenceClassification"]}',
    "SUMMARY/summary.json": "{}",
    "CMP/summary.json": '{"runs": [], "folders": ["../a", "b"]}',
    "ERM/erm/thesis.txt": "years of work",
    "CONSTRAINED/constrained/thesis.txt": "years of work",
    # Runs, and an earlier demo, that hold a file which Descend did not write.
    "DATA/clip.txt": "",
    "ANSWERS.json": '[{"instruction": "a", "output": "b"}]',
    "HOLDS/page.html": "mine",
    "PAGE-1/summary.json": '{"years": "of work"}',
    "PAGE-2/report.html": "mine",
    "DEMO-1/report.html": "mine",
    "DEMO-2/erm/notes.txt": "mine",
    "HOLDS/sweep.db/sweep.db": "mine",
    "HOLDS/sweep.json/sweep.json": "mine",
    **{
        f"HOLDS/{name}/{file}": text
        for name in ("model/weights.pt", "dual.safetensors", "summary.json", "report.html", "on-DATA/groups.json")
        for file, text in (("config.json", RUN), (name, "mine"))
    },
    "t5/config.json": '{"model_type": "t5"}',
    "big_bird/config.json": '{"model_type": "big_bird"}',
    "beit/config.json": '{"model_type": "beit"}',
    "words/vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(900))]),
    "moods.csv": "\n".join(
        ["text,label", *(f"{place} {mood},{mood}" for place in range(20) for mood in ("joy", "calm", "fear"))]
    ),
}


@pytest.fixture(scope="module")
def there(finished, models, reviews, tmp_path_factory) -> Iterator[dict[Path, int]]:
    """All files of a working directory with runs, data and models of many kinds, and when each was written."""
    with contextlib.chdir(tmp_path_factory.mktemp("there")):
        Path("MODELS").symlink_to(models)
        Path("REVIEWS").symlink_to(reviews)
        shutil.copytree(finished, "RUN", ignore=shutil.ignore_patterns("checkpoint-*"))
        config = json.loads(Path("RUN/config.json").read_text()) | {"seconds": None}
        copied = {
            "unfinished/config.json": json.dumps(config),
            "other/summary.json": Path("RUN/summary.json").read_text(),
        }
        put(Path(), FILES | copied)
        shutil.copy("RUN/written.json", "other")
        shutil.copytree("RUN", "earlier")
        write_json(Path("earlier/config.json"), config | {"training": config["training"] | {"method": "erm"}})
        for suffix in ("avi", "mp4"):
            write_video(Path(f"clips/a.{suffix}"), 2)
        image_folder(Path("FARM"), classes=("cows", "dogs"))
        write_frames(Path("IMAGES"))
        write_frames(Path("SHORT"), frames=7, suffix=".png")  # 2 to test on, 2 to train on, 3 to validate on
        yield files()


def files() -> dict[Path, int]:
    """All files below the working directory, and when each was written; a lock's comes and goes in a folder."""
    return {path: path.is_file() and path.stat().st_mtime_ns for path in Path().rglob("*")}


def line_of(words: str) -> str:
    """The command that trains a recipe into a new folder, on generated data if the words name none."""
    data = "" if "--data " in words or words == "lm" else " --data generated"
    return f"train {words}{data} --out new"


LINES = [*((line_of(words), remedy) for words, remedy in TRAINED), *OTHERS]


@pytest.mark.parametrize(("line", "remedy"), LINES, ids=[line for line, _ in LINES])
def test_wrong_input_is_one_line_and_changes_nothing(line, remedy, there, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DESCEND_CACHE", str(tmp_path))
    told = refused(capsys, *shlex.split(line)).replace(f"{Path.cwd()}/", "")
    assert told.startswith("descend: ") and remedy in told and files() == there
